"""A buffer of a million completions: what goes in comes out, from memory and from disk.

    python -m benchmarks.replay_load [--completions 1000000 --tokens 200]

Groups are made from their numbers, so that each can be made again: every group that is held is
drawn once, in order, and compared bit for bit; then the buffer is opened anew from its files and
its state, and compared again. Twice as many go in as are held, so that half are evicted. The last
lines say how many were compared, and what a completion took in memory and on disk.
"""

import resource
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tyro

from ogrpo.data.replay import BufferLimits, Layout, ReplayBuffer, fifo
from ogrpo.data.replay.columns import Columns, narrow

G, BATCH, PROMPT = 8, 64, 16
LAYOUT = Layout(group_size=G, vocab_size=50_000)


class Load(NamedTuple):
    """The result of a load."""

    held: int
    """Completions held at the end."""
    compared: int
    """Completions that came back as they went in, from memory and from disk together."""
    memory: float
    """Bytes of a completion's arrays in memory."""
    disk: float
    """Bytes of a completion on disk."""


def groups(number: int, tokens: int) -> Columns:
    """The batch of this number: its groups differ from those of all others."""
    rng = np.random.default_rng([7, number])
    lengths = rng.integers(1, 2 * tokens, (BATCH, G)).astype(np.int32)
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


def compare(buffer: ReplayBuffer, numbers: range, tokens: int) -> int:
    """Draws every batch that is held, in order; returns the completions that are what they were.

    Raises:
        ValueError: a group is not, or is held that should not be.
    """
    if len(buffer) != len(numbers) * BATCH:
        raise ValueError(f"{len(buffer)} groups are held, {len(numbers) * BATCH} should be")
    for number in numbers:
        drawn, expected = buffer.sample(BATCH, seed=number), groups(number, tokens)
        for name, values in expected._asdict().items():
            if not np.array_equal(getattr(drawn.columns, name), values):
                raise ValueError(f"batch {number} came back with other {name}")
    return len(numbers) * BATCH * G


def load(folder: Path, completions: int, tokens: int) -> Load:
    """Fills a buffer twice over, and compares all that it holds, before and after a reopening."""
    batches = completions // (BATCH * G)
    limits = BufferLimits(groups=batches * BATCH)
    buffer = ReplayBuffer(LAYOUT, limits, fifo, folder=folder)
    for number in range(2 * batches):
        buffer.insert_columns(groups(number, tokens))
    held = range(batches, 2 * batches)
    state = buffer.state()
    before, memory = compare(buffer, held, tokens), buffer.statistics()["bytes"]
    size = sum(file.stat().st_size for file in folder.glob("*.parquet"))
    del buffer  # both at once may not fit
    again = ReplayBuffer(LAYOUT, limits, fifo, folder=folder, state=state)
    each = batches * BATCH * G
    return Load(each, before + compare(again, held, tokens), memory / each, size / (2 * each))


def main(completions: int = 1_000_000, tokens: int = 200, folder: Path | None = None) -> Load:
    """Fills a buffer, compares, and prints what it took.

    Args:
        completions: held.
        tokens: of a completion, on average.
        folder: for the files; a temporary one by default.
    """
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=folder) as files:
        result = load(Path(files), completions, tokens)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(
        f"held {result.held:,} completions; {result.compared:,} came back bit for bit, half of them"
        f" from disk\na completion takes {result.memory:,.0f} bytes in memory, {result.disk:,.0f}"
        f" on disk; peak resident memory {peak:.2f} GB; {time.perf_counter() - begun:.0f} s"
    )
    return result


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
