import weakref
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ogrpo.protocol import Sampling
from ogrpo.rollout.embedded import EmbeddedEngine

SAMPLING = Sampling(temperature=0.5, max_tokens=4, group_size=2)


def echo(params, ids, mask, seed, *, temperature, greedy, group_size, max_tokens):
    """Completion g of a prompt repeats the prompt's length g + 1 times; the last one never ends."""
    lengths = np.broadcast_to(np.arange(1, group_size + 1), (len(ids), group_size))
    token_mask = np.arange(max_tokens) < lengths[..., None]
    tokens = np.where(token_mask, mask.sum(1)[:, None, None], 0).astype(np.int32)
    return SimpleNamespace(
        token_ids=tokens,
        log_probs=np.where(token_mask, params, 0).astype(np.float32),
        mask=token_mask,
        finished=lengths < group_size,
    )


def prompts(*lengths):
    return [np.full(n, 9, np.int32) for n in lengths]


def test_groups_keep_the_order_of_prompts_whatever_the_batch_size():
    for batch_size in (1, 2, 3, 7):
        embedded = EmbeddedEngine(echo, batch_size=batch_size, prompt_length=5)
        embedded.publish(-1.0, version=4)
        groups = embedded.generate(prompts(3, 1, 5, 2, 4), SAMPLING, seed=0)
        assert [len(g.prompt_ids) for g in groups] == [3, 1, 5, 2, 4]
        for group, length in zip(groups, (3, 1, 5, 2, 4), strict=True):
            short, long = group.completions
            assert short.token_ids.tolist() == [length]
            assert long.token_ids.tolist() == [length, length]
            assert long.log_probs.tolist() == [-1.0, -1.0]
            assert (short.finish_reason, long.finish_reason) == ("stop", "length")
            assert {c.policy_version for c in group.completions} == {4}
            assert {c.temperature for c in group.completions} == {0.5}
        with pytest.raises(ValueError, match=r"6 tokens.*takes 5"):
            embedded.generate(prompts(1, 6), SAMPLING, seed=0)


def test_prompts_are_padded_to_a_few_widths_as_far_as_the_model_has_positions():
    widths = []

    def watched(params, ids, *args, **how):
        widths.append(ids.shape[1])
        return echo(params, ids, *args, **how)

    embedded = EmbeddedEngine(watched, batch_size=1, prompt_length=None, max_length=150)
    embedded.publish(0.0, 0)
    embedded.generate(prompts(1, 3, 33, 64, 65, 97, 128, 129), SAMPLING, seed=0)
    assert widths == [1, 4, 64, 64, 80, 112, 128, 150 - SAMPLING.max_tokens]


def test_a_push_in_the_middle_of_a_call_leaves_its_groups_one_version_and_its_weights():
    def push_then_echo(params, *args, **how):
        embedded.publish(params - 1.0, embedded.version + 1)
        return echo(params, *args, **how)

    embedded = EmbeddedEngine(push_then_echo, batch_size=2, prompt_length=5)
    embedded.publish(-1.0, 0)
    for version, params in ((0, -1.0), (2, -2.0)):  # two pushes a call, one a chunk
        groups = embedded.generate(prompts(1, 2, 3), SAMPLING, 0)
        drawn = [c for group in groups for c in group.completions]
        assert {c.policy_version for c in drawn} == {version}
        assert {float(x) for c in drawn for x in c.log_probs} == {params}
        assert embedded.version == version + 2


def test_weights_are_prepared_once_for_each_call_and_not_kept():
    prepared = []

    def prepare(params):
        prepared.append(weakref.ref(copy := np.array(params - 1.0)))
        return copy

    embedded = EmbeddedEngine(echo, batch_size=2, prompt_length=5, prepare_fn=prepare)
    embedded.publish(-1.0, 0)
    for _ in range(2):
        groups = embedded.generate(prompts(1, 2, 3), SAMPLING, 0)
        assert {float(x) for g in groups for c in g.completions for x in c.log_probs} == {-2.0}
    assert [reference() for reference in prepared] == [None, None]


def test_withdrawn_weights_can_be_donated():
    embedded = EmbeddedEngine(echo, batch_size=2, prompt_length=5)
    params = jnp.arange(1 << 16, dtype=jnp.float32)
    embedded.publish(params, 0)
    embedded.withdraw()
    with pytest.raises(RuntimeError, match="publish"):
        embedded.generate(prompts(1), SAMPLING, seed=0)
    jax.jit(lambda x: x + 1, donate_argnums=0)(params)
    assert params.is_deleted()
