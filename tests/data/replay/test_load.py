"""A buffer of many completions, half of which were evicted, gives back the others bit for bit."""

import numpy as np

from ogrpo.data.replay import BufferLimits, Layout, ReplayBuffer, fifo
from ogrpo.data.replay.columns import Columns, narrow

G, BATCH, PROMPT, TOKENS = 8, 64, 16, 20
BATCHES = 20_000 // (BATCH * G)
LAYOUT = Layout(group_size=G, vocab_size=50_000)


def groups(number):
    """The batch of this number: its groups differ from those of all others."""
    rng = np.random.default_rng([7, number])
    lengths = rng.integers(1, 2 * TOKENS, (BATCH, G)).astype(np.int32)
    prompt_lengths = rng.integers(1, PROMPT, BATCH).astype(np.int32)
    total, shape = int(lengths.sum()), lengths.shape
    columns = Columns(
        prompt_ids=rng.integers(0, LAYOUT.vocab_size, int(prompt_lengths.sum())),
        prompt_lengths=prompt_lengths,
        token_ids=rng.integers(0, LAYOUT.vocab_size, total),
        log_probs=-rng.random(total, np.float32),
        lengths=lengths,
        policy_versions=np.full(shape, number, np.int32),
        temperatures=np.ones(shape),
        finish_reasons=rng.integers(0, 2, shape).astype(np.uint8),
        rewards=rng.random(shape, np.float32),
        problems=number * BATCH + np.arange(BATCH),
        spans=np.zeros((0, 5), np.int32),
        without_loss=np.zeros((0, 4), np.int32),
        top_ids=np.zeros((total, 0), np.uint8),
        top_log_probs=np.zeros((total, 0), np.float32),
    )
    return narrow(columns, LAYOUT)


def check(buffer):
    """Draws all that should be held, in order."""
    assert len(buffer) == BATCHES * BATCH
    for number in range(BATCHES, 2 * BATCHES):
        drawn = buffer.sample(BATCH, seed=number)
        for name, values in groups(number)._asdict().items():
            assert np.array_equal(getattr(drawn.columns, name), values), (number, name)


def test_twenty_thousand_completions_come_back_from_memory_and_from_disk(tmp_path):
    limits = BufferLimits(groups=BATCHES * BATCH)
    buffer = ReplayBuffer(LAYOUT, limits, fifo, folder=tmp_path)
    for number in range(2 * BATCHES):
        buffer.insert_columns(groups(number))
    state = buffer.state()
    check(buffer)
    del buffer
    check(ReplayBuffer(LAYOUT, limits, fifo, folder=tmp_path, state=state))
