"""Steps that read the written part of the cache, on fewer rows as they end, draw the same samples."""

import math
import re
from functools import partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

from ogrpo.batch import take
from ogrpo.policy.attention import attend
from ogrpo.policy.decoder import unstack
from tests.policy.tiny import make_case, run_sampler

pytestmark = pytest.mark.slow

run = partial(run_sampler, temperature=1.0, group_size=5, max_tokens=40, eos_id=3)


@pytest.mark.parametrize(
    ("family", "apart", "how", "atol"),
    [
        ("Qwen2", False, {"least_read": 3}, 2e-6),
        ("Qwen3", True, {"halvings": 2}, 1e-5),
        ("Qwen2", True, {"least_read": 3, "halvings": 2}, 2e-6),
    ],
)
def test_reading_what_is_written_on_fewer_rows_changes_no_sample(family, apart, how, atol):
    config, params, batch = make_case(family)
    used, longest = unstack(params) if apart else params, 0
    for eos_id, seed, greedy in product((3, 7), range(2), (False, True)):
        changes = {"eos_id": eos_id, "seed": seed, "greedy": greedy}
        whole = run(config, params, batch, **changes)
        part = run(config, used, batch, **how, **changes)
        for name in ("token_ids", "mask", "finished"):
            np.testing.assert_array_equal(getattr(part, name), getattr(whole, name))
        longest = max(longest, int(whole.mask.sum(-1).max()))
        np.testing.assert_allclose(part.log_probs, whole.log_probs, rtol=1e-6, atol=atol)
    assert longest > 24, "the case must reach the longest read"


def test_a_step_reads_the_least_length_that_holds_what_is_written():
    config, params, batch = make_case(num_layers=1)
    reads = []

    def attention_fn(queries, segments):
        if len(segments) == 3:
            size = segments[1].keys.shape[-3]
            io_callback(lambda: reads.append(size), None, ordered=False)
        return attend(queries, segments)

    samples = run(config, params, batch, max_tokens=15, least_read=3, attention_fn=attention_fn)
    jax.effects_barrier()
    steps = int(samples.mask.sum(-1).max()) - 1
    lengths = np.array([3, 6, 12, 15])
    expected = [int(lengths[lengths >= past].min()) for past in range(steps)]
    assert sorted(reads) == expected
    assert set(reads) == {3, 6, 12, 15}


def test_halving_goes_on_with_the_unfinished_rows_alone():
    config, params, batch = make_case()
    widths = []

    def attention_fn(queries, segments):
        if len(segments) == 3:
            rows = queries.shape[0] * queries.shape[1]
            io_callback(lambda: widths.append(rows), None, ordered=True)
        return attend(queries, segments)

    samples = run(config, params, batch, attention_fn=attention_fn, halvings=2, temperature=0.7)
    jax.effects_barrier()
    lengths = np.asarray(samples.mask.sum(-1)).ravel()
    unfinished = [int(np.sum(lengths > step)) for step in range(1, lengths.max())]
    expected = [15 if count > 7 else 7 if count > 3 else 3 for count in unfinished]
    assert widths[::2] == widths[1::2] == expected
    assert set(expected) == {15, 7, 3}, "the case must halve twice"


def test_one_row_cannot_be_halved():
    config, params, batch = make_case()
    one = take(batch, slice(1))
    plain, halved = (
        run(config, params, one, group_size=1, max_tokens=6, halvings=n) for n in (0, 4)
    )
    jax.tree.map(np.testing.assert_array_equal, plain, halved)


def test_a_step_writes_and_reads_the_caches_as_they_lie():
    """By XLA's program for this CPU, unstacked: nothing of a cache's size is copied or turned."""
    config, params, batch = make_case()
    params = unstack(params)
    longer = ((0, 0), (0, 23 - batch.prompt_ids.shape[1]))
    ids, mask = (jnp.pad(x, longer) for x in (batch.prompt_ids, batch.prompt_mask))
    batch = batch._replace(prompt_ids=ids, prompt_mask=mask)
    program = jax.jit(lambda params: run(config, params, batch, max_tokens=41)).lower(params)
    text = program.compile().as_text() or ""
    parts = dict(re.findall(r"^(?:ENTRY )?(%[\w.-]+) \(.*?\{\n(.*?)^\}", text, re.M | re.S))
    loops = [line for line in text.splitlines() if " while(" in line and "f32[3,5," in line]
    names = re.findall(r"body=(%[\w.-]+)", "".join(loops))
    for name in names:  # grows by the computations that this one calls
        names += set(re.findall(r"%[\w.-]+", parts[name])) & parts.keys() - set(names)
    body = "".join(parts[name] for name in names)
    each = config.num_kv_heads * config.head_dim
    made = {
        kind
        for shape, kind in re.findall(r" = f32\[([\d,]+)\]\S* ([\w-]+)\(", body)
        if math.prod(map(int, shape.split(","))) in (3 * 5 * each * 41, 3 * each * 23)
    }
    assert len(loops) == 1
    assert "dynamic-update-slice" in made
    assert not made & {"copy", "transpose"}
