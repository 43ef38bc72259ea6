"""What a crash can leave on disk, byte by byte, and what is read back."""

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow.dataset as ds
import pytest

from ogrpo.data.replay import (
    BrokenSegment,
    BufferLimits,
    Fifo,
    Prioritised,
    ReplayBuffer,
    Stratified,
    novelty,
    pack,
    segments,
    uniform,
)
from ogrpo.data.replay.columns import unpack
from tests.data.replay.make import LAYOUT, experience, facts

ROOT = Path(__file__).parents[3]
SAMPLERS = [
    Fifo,
    partial(uniform, replace=True),
    partial(Prioritised, weight=partial(novelty, exponent=0.5), replace=False),
    partial(Stratified, replace=False),
]


def made(folder, count, **options):
    buffer = ReplayBuffer(LAYOUT, BufferLimits(), Fifo, folder=folder, **options)
    buffer.insert([experience(n, version=n) for n in range(count)])
    return buffer


def reopened(folder, state=None, **options):
    return ReplayBuffer.open(folder, LAYOUT, BufferLimits(), Fifo, state=state, **options)


def held_by(buffer):
    return [facts(one) for one in buffer._memory.read(buffer._table.all_live()).experiences]


def expected(numbers):
    return [facts(experience(n, version=n)) for n in numbers]


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_segment_reads_back_what_was_written(tmp_path, dtype):
    layout = replace(LAYOUT, log_prob_dtype=dtype)
    columns = pack([experience(n, version=n) for n in range(9)], layout)
    found = segments.read(segments.write(tmp_path, 5, columns, layout), layout)
    for name, values in columns._asdict().items():
        np.testing.assert_array_equal(getattr(found, name), values)
        assert getattr(found, name).dtype == values.dtype, name


def all_with_loss(one):
    """The group as it was before completions had a loss mask."""
    done = tuple(replace(c, loss_mask=None) for c in one.group.completions)
    return replace(one, group=replace(one.group, completions=done))


def test_the_files_of_a_run_from_before_loss_masks_are_read_and_added_to(tmp_path):
    """`format_1` holds groups 0 to 3 as an earlier version wrote them."""
    shutil.copytree(Path(__file__).parent / "format_1", tmp_path, dirs_exist_ok=True)
    before = [facts(all_with_loss(experience(n, version=n))) for n in range(4)]
    buffer = reopened(tmp_path)
    assert held_by(buffer) == before
    buffer.insert([experience(n, version=n) for n in range(4, 10)])
    state = buffer.state()
    assert [segment.first for segment in segments.listed(tmp_path)] == [0, 4]
    for again in (reopened(tmp_path), reopened(tmp_path, state)):
        assert held_by(again) == before + expected(range(4, 10))


def test_a_file_of_a_later_format_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(segments, "WRITTEN", "3")
    segment = segments.write(tmp_path, 0, pack([experience(0)], LAYOUT), LAYOUT)
    with pytest.raises(ValueError, match=r"format = 3, and this version reads 1 and 2: open it"):
        segments.read(segment, LAYOUT)


def test_a_mask_of_all_tokens_takes_no_memory_and_next_to_nothing_on_disk(tmp_path):
    fresh = [experience(n) for n in range(0, 40, 4)]
    told = [
        replace(
            one,
            group=replace(
                one.group,
                completions=tuple(
                    replace(c, loss_mask=c.carries_loss) for c in one.group.completions
                ),
            ),
        )
        for one in fresh
    ]
    buffers = [ReplayBuffer(LAYOUT, BufferLimits(), Fifo) for _ in range(2)]
    buffers[0].insert(fresh)
    buffers[1].insert(told)
    assert buffers[0].nbytes == buffers[1].nbytes
    columns = pack(told, LAYOUT)
    whole = segments.write(tmp_path, 0, columns, LAYOUT).file.stat().st_size
    table = segments.to_table(0, columns, LAYOUT).drop_columns(["without_loss"])
    with (tmp_path / "without").open("wb") as out:
        segments._write_table(table, out)
    assert 0 < whole - (tmp_path / "without").stat().st_size < 1000


def test_every_torn_segment_is_told_from_a_whole_one(tmp_path):
    segment = segments.write(tmp_path, 0, pack([experience(0)], LAYOUT), LAYOUT)
    whole = segment.file.read_bytes()
    for size in reversed(range(len(whole))):
        os.truncate(segment.file, size)
        with pytest.raises(BrokenSegment):
            segments.read(segment, LAYOUT)
    segment.file.write_bytes(whole)
    assert [facts(e) for e in unpack(segments.read(segment, LAYOUT))] == [facts(experience(0))]


def test_a_flipped_bit_is_found_or_harmless(tmp_path):
    segment = segments.write(tmp_path, 0, pack([experience(0)], LAYOUT), LAYOUT)
    whole = segment.file.read_bytes()
    footer = int.from_bytes(whole[-8:-4], "little") + 8
    wanted = facts(experience(0))
    found, places = 0, range(4, len(whole) - footer, 5)
    for place in places:
        segment.file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        try:
            assert [facts(e) for e in unpack(segments.read(segment, LAYOUT))] == [wanted]
        except BrokenSegment:
            found += 1
    assert found > len(places) / 2  # the rest lies in headers and changes nothing


@pytest.mark.parametrize("prefix", ["", segments.UNFINISHED])
def test_a_crash_at_any_byte_loses_only_what_was_not_acknowledged(tmp_path, prefix):
    """Groups 0 and 1 were acknowledged; the segment of group 2 is cut, before and after its rename."""
    buffer = made(tmp_path, 2)
    buffer.flush()
    assert buffer.acknowledged == 2
    buffer.insert([experience(2, version=2)])
    buffer.flush()
    file = segments.listed(tmp_path)[-1].file
    whole = file.read_bytes()
    file.unlink()
    torn = file.with_name(prefix + file.name)
    for size in [*range(0, len(whole), 257), len(whole) - 1]:
        torn.write_bytes(whole[:size])
        again = reopened(tmp_path)
        assert held_by(again) == expected([0, 1])
        counted = again.statistics()
        assert counted["dropped/unfinished_files" if prefix else "dropped/torn"] == 1
        again.insert([experience(7, version=7)])
        again.flush()
        assert held_by(reopened(tmp_path)) == expected([0, 1, 7])
        segments.listed(tmp_path)[-1].file.unlink()


def test_a_broken_segment_that_was_acknowledged_is_an_error(tmp_path):
    buffer = made(tmp_path, 2)
    state = buffer.state()
    buffer.insert([experience(2)])
    buffer.flush()
    first = segments.listed(tmp_path)[0].file
    whole = first.read_bytes()
    first.write_bytes(whole[:-1])
    for saved in (None, state):
        with pytest.raises(
            BrokenSegment, match=r"groups-000000000000-000000000002\.parquet cannot"
        ):
            reopened(tmp_path, saved)
        assert not (tmp_path / segments.ASIDE).exists()
    first.unlink()
    with pytest.raises(ValueError, match="2 groups of the state, the first 0, are in no segment"):
        reopened(tmp_path, state)


CHILD = """
import os, signal, sys
from pathlib import Path
from ogrpo.data.replay import Fifo, BufferLimits, ReplayBuffer
from tests.data.replay.make import LAYOUT, experience

folder, dies_at = Path(sys.argv[1]), sys.argv[2]
buffer = ReplayBuffer(LAYOUT, BufferLimits(groups=2), Fifo, folder=folder, segment_groups=3)

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

for n in range(7):
    if n == 5 and dies_at == "rename":
        os.replace = die
    if n == 5 and dies_at == "fsync":
        os.fsync = die
    buffer.insert([experience(n, version=n)])
    print(buffer.acknowledged, flush=True)
die()
"""


@pytest.mark.parametrize(("dies_at", "safe"), [("rename", 3), ("fsync", 3), ("end", 6)])
def test_a_killed_process_loses_only_what_was_not_acknowledged(tmp_path, dies_at, safe):
    """Killed while the second segment is written, or with one group waiting; evicted groups count."""
    command = [sys.executable, "-c", CHILD, str(tmp_path), dies_at]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert int(done.stdout.split()[-1]) == safe
    assert held_by(reopened(tmp_path)) == expected(range(safe))


def exercised(folder, sampler, steps, buffer=None):
    """A run of insertions and draws from step `steps[0]`; returns the buffer and all it drew."""
    limits = BufferLimits(groups=20, staleness=6)
    if buffer is None:
        buffer = ReplayBuffer(LAYOUT, limits, sampler, folder=folder, segment_groups=5)
    drawn = []
    for step in range(*steps):
        fresh = [experience(10 * step + n, version=step, problem=n % 3) for n in range(7)]
        buffer.insert(fresh)
        for turn in range(2):
            draw = buffer.sample(4, seed=10 * step + turn)
            contents = [facts(one) for one in draw.experiences]
            drawn.append((draw.ids.tolist(), draw.uses.tolist(), contents))
    return buffer, drawn


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_resumed_run_draws_what_the_uninterrupted_one_did(tmp_path, sampler):
    """The state is saved at step 4, the run crashes at step 7 and is resumed from step 4."""
    buffer, _ = exercised(tmp_path, sampler, (0, 4))
    state = buffer.state()
    before = buffer.statistics()
    buffer, wanted = exercised(tmp_path, sampler, (4, 7), buffer)
    after = buffer.statistics()
    again = ReplayBuffer.open(
        tmp_path,
        LAYOUT,
        BufferLimits(groups=20, staleness=6),
        sampler,
        state=state,
        segment_groups=5,
    )
    dropped = again.statistics()["dropped/superseded"]
    assert dropped > 0
    assert again.statistics() == before | {
        "dropped/superseded": dropped,
        "bytes/allocated": again.statistics()["bytes/allocated"],
    }
    again, found = exercised(tmp_path, sampler, (4, 7), again)
    assert found == wanted
    assert again.statistics() == after | {
        "dropped/superseded": dropped,
        "bytes/allocated": again.statistics()["bytes/allocated"],
    }


def test_what_is_superseded_is_kept_aside_and_said(tmp_path, caplog):
    buffer = made(tmp_path, 2)
    state = buffer.state()
    for turn in range(2):
        buffer = reopened(tmp_path, state) if turn else buffer
        buffer.insert([experience(5)])
        buffer.flush()
    reopened(tmp_path, state)
    assert ds.dataset(tmp_path).count_rows() == 2 * LAYOUT.group_size  # readers see what is held
    assert len(list((tmp_path / segments.ASIDE).iterdir())) == 2
    assert "groups 2 to 2 are dropped, superseded" in caplog.text


def test_without_a_state_the_limits_choose_what_is_held(tmp_path):
    made(tmp_path, 9, segment_groups=2).flush()
    limits = BufferLimits(groups=4, staleness=3)
    again = ReplayBuffer.open(tmp_path, LAYOUT, limits, Fifo, state=None, refuse_zero_variance=True)
    assert held_by(again) == expected([6, 7, 8])  # version 9 was heard of, in group 8
    assert again.acknowledged == 9
    assert again.insert([experience(9, version=9)]).ids.tolist() == [9]


def test_pruning_deletes_files_without_a_held_group(tmp_path):
    buffer = ReplayBuffer(LAYOUT, BufferLimits(groups=3), Fifo, folder=tmp_path, segment_groups=1)
    for n in range(8):
        buffer.insert([experience(n, version=n)])
    assert len(segments.listed(tmp_path)) == 8
    assert buffer.prune() == 5
    assert [s.first for s in segments.listed(tmp_path)] == [5, 6, 7]
    again = ReplayBuffer.open(tmp_path, LAYOUT, BufferLimits(), Fifo, state=buffer.state())
    assert held_by(again) == expected([5, 6, 7])


def test_pruning_keeps_what_an_older_state_speaks_of(tmp_path):
    buffer = ReplayBuffer(LAYOUT, BufferLimits(groups=3), Fifo, folder=tmp_path, segment_groups=1)
    for n in range(5):
        buffer.insert([experience(n, version=n)])
    older = buffer.state()
    for n in range(5, 8):
        buffer.insert([experience(n, version=n)])
    assert buffer.prune([older]) == 2
    again = ReplayBuffer.open(tmp_path, LAYOUT, BufferLimits(), Fifo, state=older)
    assert held_by(again) == expected([2, 3, 4])


def test_a_folder_belongs_to_one_buffer_of_one_layout(tmp_path):
    buffer = made(tmp_path, 2)
    buffer.flush()
    with pytest.raises(ValueError, match=r"holds 1 segments already: use ReplayBuffer\.open"):
        made(tmp_path, 1)
    other = replace(LAYOUT, vocab_size=500)
    with pytest.raises(ValueError, match="has vocab_size = 300, the buffer 500"):
        ReplayBuffer.open(tmp_path, other, BufferLimits(), Fifo, state=None)
    rival = reopened(tmp_path)
    for one in (buffer, rival):
        one.insert([experience(3)])
    buffer.flush()
    with pytest.raises(ValueError, match="is there already; one folder belongs to one buffer"):
        rival.flush()
