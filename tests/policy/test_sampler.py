from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ogrpo.batch import take
from ogrpo.policy import completion_log_probs, completion_log_probs_and_entropy
from ogrpo.policy.attention import attend
from ogrpo.policy.sampler import inverse_cdf
from tests.policy.tiny import FAMILIES, SAMPLING, make_case, make_config, make_params, ragged_batch
from tests.policy.tiny import run_sampler as run

EOS = SAMPLING["eos_id"]
trainer_log_probs = jax.jit(completion_log_probs, static_argnums=1)


@pytest.mark.parametrize(
    ("family", "dtype"),
    [
        ("Qwen2", jnp.float32),
        ("Qwen2", jnp.bfloat16),
        *(pytest.param(family, jnp.float32, marks=pytest.mark.slow) for family in FAMILIES[1:]),
    ],
)
def test_log_probs_are_the_trainers(family, dtype):
    config = make_config(family)
    params, batch = make_params(config, dtype=dtype), ragged_batch(config)
    samples = run(config, params, batch)
    drawn = batch._replace(completion_ids=samples.token_ids, completion_mask=samples.mask)
    trainer = trainer_log_probs(params, config, drawn, 0.7)
    assert samples.log_probs.dtype == jnp.float32
    tolerance = 1e-5 if dtype == jnp.float32 else 0.2
    np.testing.assert_allclose(samples.log_probs, trainer, rtol=0, atol=tolerance)


def test_a_completion_ends_with_its_first_eos():
    samples = jax.tree.map(np.asarray, run(*make_case(), group_size=64))
    lengths = samples.mask.sum(-1)
    for n, g in np.ndindex(lengths.shape):
        tokens, length = samples.token_ids[n, g], lengths[n, g]
        assert samples.mask[n, g].tolist() == [t < length for t in range(6)]
        assert EOS not in tokens[: length - 1]
        assert samples.finished[n, g] == (tokens[length - 1] == EOS)
        assert samples.finished[n, g] or length == 6
        assert np.all(tokens[length:] == 0)
        assert np.all(samples.log_probs[n, g, length:] == 0)
    assert set(lengths.ravel()) >= {1, 2, 3, 6}, "the case must cover early and late ends"
    assert np.any(samples.finished & (lengths == 6))
    assert np.any(~samples.finished)


def test_frequencies_are_those_of_the_policy():
    config, params, batch = make_case()
    one = take(batch, slice(1))
    group = 1 << 14
    samples = run(config, params, one, group_size=group, max_tokens=2, eos_id=0)
    every = jnp.asarray([*product(range(11), repeat=2)], jnp.int32)[None]
    whole = one._replace(completion_ids=every, completion_mask=jnp.ones(every.shape, bool))
    log_probs = trainer_log_probs(params, config, whole, 0.7)
    pairs = np.exp(np.asarray(log_probs, np.float64).sum(-1)).reshape(11, 11)
    # After the end token 0 there is no second token, and padding is 0.
    exact = np.where(np.arange(11)[:, None] == 0, 0, pairs)
    exact[0, 0] = pairs[0].sum()
    assert exact.sum() == pytest.approx(1, abs=1e-5)
    counts = np.zeros((11, 11))
    np.add.at(counts, tuple(np.moveaxis(np.asarray(samples.token_ids)[0], -1, 0)), 1)
    sigma = np.sqrt(exact * (1 - exact) / group)
    assert np.all(np.abs(counts / group - exact) <= 5 * sigma + 1 / group)


@pytest.mark.parametrize("size", [1, 2, 5, 16, 23])
def test_inverse_cdf_gives_each_index_its_share_of_the_unit_square(size):
    rng = np.random.default_rng(size)
    p = np.where(rng.random(size) < 0.3, 0, rng.random(size) ** 3)
    p[size // 2] += 0.1
    p = (p / p.sum()).astype(np.float32)
    grid = (np.arange(256, dtype=np.float32) + 0.5) / 256
    uniforms = np.stack(np.meshgrid(grid, grid, indexing="ij"), axis=-1)
    drawn = np.asarray(inverse_cdf(jnp.broadcast_to(p, (256, 256, size)), jnp.asarray(uniforms)))
    share = np.bincount(drawn.ravel(), minlength=size) / drawn.size
    assert len(share) == size
    np.testing.assert_allclose(share, p, atol=2 / 256)
    assert np.all(share[p == 0] == 0)


@pytest.mark.parametrize("spread", [390, 151_936])  # one block of inverse_cdf, and all
def test_no_draw_at_an_edge_falls_on_an_index_of_probability_0(spread):
    rng, p = np.random.default_rng(0), np.zeros((160, 151_936), np.float32)
    places = np.sort(np.stack([rng.choice(spread, 8, replace=False) for _ in p]))
    np.put_along_axis(p, places, rng.dirichlet(np.full(8, 0.5), 160).astype(np.float32), 1)
    edges = np.cumsum(np.take_along_axis(p, places, 1), 1).astype(np.float32).clip(0, 1 - 2**-23)
    for u in (np.nextafter(edges, 0), edges, np.full_like(edges, 1 - 2**-23)):
        drawn = np.asarray(inverse_cdf(jnp.asarray(p)[:, None], jnp.asarray(np.stack([u, u], -1))))
        assert np.all(np.take_along_axis(p, drawn, 1) > 0)


def test_rare_tokens_of_a_large_vocabulary_keep_their_share():
    # Shares of 2^-27 vanish in one float32 running sum near 1, whose steps are 2^-24.
    size, width = 1 << 17, 363
    p = np.full(size, 2.0**-27, np.float32)
    p[0] = 1 - (size - 1) * 2.0**-27
    uniforms = jnp.asarray([[1 - 2.0**-12, u] for u in (0.25, 0.5, 0.75)], jnp.float32)
    drawn = np.asarray(inverse_cdf(jnp.broadcast_to(p, (3, size)), uniforms))
    assert len(set(drawn // width)) == 1
    assert drawn[0] // width > 1
    np.testing.assert_allclose(drawn % width, width * np.array([0.25, 0.5, 0.75]), atol=1)


def test_a_row_does_not_depend_on_other_rows():
    config, params, batch = make_case()
    whole = run(config, params, batch)
    first = run(config, params, take(batch, slice(1)), group_size=2)
    np.testing.assert_array_equal(first.token_ids[0], whole.token_ids[0, :2])
    shorter = run(config, params, batch, max_tokens=3)
    np.testing.assert_array_equal(shorter.token_ids, whole.token_ids[..., :3])


def test_greedy_takes_the_most_likely_token():
    config, params, batch = make_case()
    samples = run(config, params, batch, greedy=True)
    every = jnp.broadcast_to(jnp.arange(11, dtype=jnp.int32), (*samples.mask.shape, 11))
    drawn = batch._replace(
        completion_ids=samples.token_ids, completion_mask=samples.mask, top_ids=every
    )
    scores = completion_log_probs_and_entropy(params, config, drawn, 0.7).top_log_probs
    there = np.asarray(samples.mask)
    np.testing.assert_array_equal(samples.token_ids[there], scores.argmax(-1)[there])
    np.testing.assert_allclose(samples.log_probs[there], scores.max(-1)[there], atol=1e-5)
    np.testing.assert_array_equal(samples.token_ids[:, 0], samples.token_ids[:, 1])


def test_temperature_greedy_and_eos_do_not_recompile():
    config, params, batch = make_case()
    traces = []

    def attention_fn(queries, segments):
        traces.append(queries.shape)
        return attend(queries, segments)

    run(config, params, batch, attention_fn=attention_fn)
    first = len(traces)
    run(config, params, batch, attention_fn=attention_fn, temperature=1.3, greedy=True, eos_id=2)
    assert len(traces) == first > 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"temperature": 0.0}, "temperature must be > 0, got 0.0.*greedy=True"),
        ({"temperature": float("nan")}, "temperature must be > 0, got nan"),
        ({"max_tokens": 0}, r"completion \(0\) must each hold at least one token"),
        ({"max_tokens": 60}, r"prompt \(5\) and completion \(60\).*\(64\)"),
        ({"eos_id": 11}, "eos_id 11 is outside the vocabulary of 11"),
    ],
)
def test_bad_settings_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        run(*make_case(), **changes)


def test_bad_prompts_are_refused():
    config, params, batch = make_case()
    with pytest.raises(ValueError, match=r"prompts are \[N, P\]"):
        run(config, params, batch._replace(prompt_mask=batch.prompt_mask[:, :2]))
    empty = batch._replace(prompt_mask=batch.prompt_mask.at[1].set(False))
    with pytest.raises(ValueError, match=r"prompts \[1\] have no token"):
        run(config, params, empty)
