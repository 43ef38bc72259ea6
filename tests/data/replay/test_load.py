"""A buffer of many completions, half of which were evicted, gives back the others bit for bit."""

import numpy as np

from ogrpo.data.replay import BufferLimits, Layout, ReplayBuffer, fifo, pack
from tests.data.replay.make import G, versioned

GROUPS, BATCH = 20_000 // G, 250
LAYOUT = Layout(group_size=G, vocab_size=60_000)
KINDS = pack(versioned(range(BATCH)), LAYOUT)


def batch(number):
    """Groups of all kinds, other ones for each number, with token ids from the whole vocabulary."""
    return KINDS._replace(
        prompt_ids=KINDS.prompt_ids * 200 + number,
        token_ids=KINDS.token_ids * 200 + number,
        log_probs=KINDS.log_probs - number,
        policy_versions=KINDS.policy_versions + number,
        rewards=KINDS.rewards + number,
        problems=KINDS.problems + number * BATCH,
    )


def test_twenty_thousand_completions_come_back_from_memory_and_from_disk(tmp_path):
    batches = [batch(number) for number in range(2 * GROUPS // BATCH)]
    limits = BufferLimits(groups=GROUPS)
    buffer = ReplayBuffer(LAYOUT, limits, fifo, folder=tmp_path)
    for columns in batches:
        buffer.insert_columns(columns)
    reopened = ReplayBuffer(LAYOUT, limits, fifo, folder=tmp_path, state=buffer.state())
    for one in (buffer, reopened):
        assert len(one) == GROUPS
        for seed, columns in enumerate(batches[len(batches) // 2 :]):
            drawn = one.sample(BATCH, seed=seed).columns
            for name, values in columns._asdict().items():
                assert np.array_equal(getattr(drawn, name), values), (seed, name)
