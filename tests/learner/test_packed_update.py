"""An update on packed batches, cut by tokens or not, is the update on padded ones."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ogrpo.batch import Batch
from ogrpo.core import aggregate
from ogrpo.core.algorithms import ALGORITHMS, REDUCTIONS
from ogrpo.learner.examine import make_noise
from ogrpo.learner.state import hypers, init_state
from ogrpo.learner.update import gradient, jit_step, join_frozen, loss_inputs, make_update
from ogrpo.loop import Packer
from ogrpo.loop.batches import make_batch, to_device
from ogrpo.setup.devices import make_policy_fn
from tests.learner import toy
from tests.learner.toy import GRADIENT, KNOBS, REGION, make_spec
from tests.policy.tiny import make_config, make_params

pytestmark = pytest.mark.slow

CONFIG = make_config()
policy_fn = make_policy_fn(CONFIG)
score = jax.jit(policy_fn)
N, G, P, T = 4, 3, 5, 6
LEAST = P + T
REDUCED = {**REDUCTIONS, "fixed_length": partial(aggregate.fixed_length_total, length=T)}


def make_groups(seed=0, n=N, vocab=CONFIG.vocab_size) -> Batch:
    """Groups with empty completions and tokens without loss among them, the last without any."""
    groups = toy.make_groups(seed, n, p=P, t=T, vocab=vocab, shortest=0, loss=0.7)
    groups.loss_mask[-1], groups.rewards[-1, :2] = False, (0.0, 1.0)
    return groups


def cut(groups, tokens, *, skip=False, together=1):
    made = make_batch(groups, Packer(1, skip, together, tokens), for_update=True)
    return to_device(made.batch), made.shape


@cache
def updated(*, packed, microbatches=1, skip=False, tokens=None):
    """The state and the metrics after one update, with pi_k and pi_ref scored in the same way."""
    packer = Packer(microbatches, skip, 1, tokens) if packed else None
    batch = to_device(make_batch(make_groups(), packer, for_update=True).batch)
    for name, seed in (("proximal_log_probs", 1), ("ref_log_probs", 2)):
        log_probs = score(make_params(CONFIG, seed), batch, jnp.float32(0.7)).log_probs
        batch = batch._replace(**{name: log_probs})
    how = {"microbatches": microbatches, "packed": packed, "skip_zero_variance": skip}
    spec = make_spec(policy_fn=policy_fn, reduction=aggregate.group_total, region_fn=REGION, **how)
    state = init_state(make_params(CONFIG), optax.identity(), region=jnp.float32(0.25))
    return make_update(GRADIENT, spec)(state, batch, hypers(0.1, 0.7, KNOBS))


def check_equal(actual, expected, *, atol=2e-6):
    for ours, theirs in zip(*map(jax.tree.leaves, (actual, expected)), strict=True):
        assert ours.dtype == theirs.dtype
        ours, theirs = np.asarray(ours, np.float32), np.asarray(theirs, np.float32)
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=atol)


@pytest.mark.parametrize("how", [{}, {"microbatches": 2}, {"tokens": LEAST}])
def test_state_and_metrics_are_those_of_the_padded_update(how):
    """By microbatches, or cut by tokens within groups."""
    atol = 5e-6 if how.get("tokens") == LEAST else 2e-6  # groups are split: another order of sums
    check_equal(updated(packed=True, **how), updated(packed=False), atol=atol)


def test_a_cut_by_tokens_splits_groups_that_do_not_fit_and_no_others():
    assert cut(make_groups(), LEAST)[1].parts > N
    assert cut(make_groups(), 1000)[1].parts == 1


def test_groups_left_out_change_nothing_but_what_metrics_are_of():
    packed, metrics = updated(packed=True, skip=True)
    check_equal(packed, updated(packed=False)[0])
    # Cut into groups, the padded update leaves out the same ones: metrics are of the others.
    check_equal(metrics, updated(packed=False, skip=True, microbatches=N)[1])
    groups = make_groups()
    assert cut(groups, LEAST, skip=True)[1].parts < cut(groups, LEAST)[1].parts
    learned = groups._replace(loss_mask=groups.completion_mask)
    assert cut(groups, None, skip=True)[1].groups < cut(learned, None, skip=True)[1].groups
    state = updated(packed=True, tokens=LEAST, skip=True)[0]
    check_equal(state, updated(packed=False)[0], atol=5e-6)


def test_the_noise_of_a_gradient_is_measured_on_the_padded_batch():
    groups, noise = make_groups(vocab=toy.V), []
    for packer in (None, Packer(1, False)):
        batch = to_device(make_batch(groups, packer, for_update=True).batch)
        spread = make_noise(make_spec(packed=packer is not None))
        noise.append(spread(toy.make_state(), batch, hypers(0.1, 0.7, KNOBS)))
    check_equal(*noise)


def test_a_batch_that_microbatches_do_not_divide_comes_in_fewer_parts():
    """As a certificate's do, which are of other sizes than a draw."""
    made = make_batch(make_groups(n=16, vocab=toy.V), Packer(6, False), for_update=False)
    assert made.shape is not None
    assert made.shape.parts in (1, 2)


def test_a_program_for_each_shape_and_no_more():
    jitted = jit_step(GRADIENT, make_spec(packed=True))
    update = join_frozen(jitted)
    state, shapes = toy.make_state(), set()
    for seed in range(200):
        groups = make_groups(seed, n=16, vocab=toy.V)
        made = make_batch(groups, Packer(1, False), for_update=True)
        shapes.add(made.shape)
        if seed < 8:
            state, _ = update(state, to_device(made.batch), hypers(0.1, 0.7, KNOBS))
            assert jitted._cache_size() == len(shapes)
    assert len(shapes) <= 16


lengths = st.lists(st.integers(0, 12), min_size=15, max_size=15).map(
    lambda x: np.reshape(x, (5, 3))
)
prompts = st.lists(st.integers(1, 4), min_size=5, max_size=5)


@settings(max_examples=6)
@given(prompts, lengths, st.integers(16, 90), st.sampled_from([1, 2]), st.sampled_from([*REDUCED]))
def test_any_cut_has_the_gradient_of_the_whole_in_float64(
    prompts, lengths, tokens, together, reduction
):
    rng = np.random.default_rng(int(lengths.sum()))
    mask = np.arange(12) < lengths[..., None]
    groups = make_groups(n=5)._replace(
        prompt_ids=rng.integers(0, 5, (5, 4)).astype(np.int32),
        prompt_mask=np.arange(4) < np.array(prompts)[:, None],
        completion_ids=rng.integers(0, 5, mask.shape).astype(np.int32),
        completion_mask=mask,
        loss_mask=mask & (rng.random(mask.shape) < 0.8),
        behavior_log_probs=rng.normal(-1.6, 0.3, mask.shape),
        proximal_log_probs=rng.normal(-1.6, 0.3, mask.shape),
        ref_log_probs=rng.normal(-1.6, 0.3, mask.shape),
    )
    batch, shape = cut(groups, tokens, together=together)
    assert shape.row <= tokens
    assert shape.parts % together == 0
    with jax.enable_x64(True):
        wide = jax.tree.map(_wide, (toy.make_params(), batch, hypers(0.1, 0.7, KNOBS)))
        spec = make_spec(reduction=REDUCED[reduction], together=together)
        packed, padded = (
            jax.jit(partial(_gradient, spec._replace(packed=packed)))(*wide)
            for packed in (True, False)
        )
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-10, atol=1e-10), packed, padded)


def _wide(x):
    return jnp.asarray(np.asarray(x, np.float64 if x.dtype == jnp.float32 else x.dtype))


def _gradient(spec, params, batch, hyper):
    batch = batch if spec.packed else batch._replace(packing=None)
    grads, aux = gradient(params, loss_inputs(batch, spec, hyper), hyper, spec)
    assert aux.output.log_probs.dtype == jnp.float64
    return grads, aux


def test_what_looks_at_a_whole_group_is_refused():
    batch, _ = cut(make_groups(), LEAST)
    spec = make_spec(packed=True, algorithm=ALGORITHMS["opmd_pairwise"])
    hyper = hypers(0.1, 0.7, {"tau": 1.0, "beta": 0.0})
    with pytest.raises(ValueError, match=r"opmd_pairwise looks at a whole group.* may split"):
        gradient(toy.make_params(), loss_inputs(batch, spec, hyper), hyper, spec)
