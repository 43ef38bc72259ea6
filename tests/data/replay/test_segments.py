"""The files of a buffer: what a crash leaves of them, byte by byte, and files that are others."""

import shutil
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ogrpo.data import replay
from ogrpo.system import lock
from tests.data.replay import make
from tests.system.test_lock import holder

ASIDE = replay.segments.ASIDE


def files(folder):
    return [segment.file for segment in replay.segments.listed(folder)]


@pytest.fixture
def segment(tmp_path):
    """The file of one group."""
    return replay.segments.write(
        tmp_path, 0, replay.pack([make.experience(0)], make.LAYOUT), make.LAYOUT
    )[0]


def test_a_file_of_a_later_format_is_refused(segment, monkeypatch):
    monkeypatch.setattr(replay.segments, "VERSION", "2")
    with pytest.raises(ValueError, match=r"format = 3, and this version reads 2: open it"):
        replay.segments.read(segment, make.LAYOUT)


def test_a_flipped_bit_is_found_or_harmless(segment):
    whole = segment.file.read_bytes()
    footer = int.from_bytes(whole[-8:-4], "little") + 8
    refused, places = 0, range(4, len(whole) - footer, 5)
    for place in places:
        segment.file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        try:
            assert make.contents(replay.segments.read(segment, make.LAYOUT)[0]) == [
                make.facts(make.experience(0))
            ]
        except replay.BrokenSegment:
            refused += 1
    assert refused > len(places) / 2  # the rest lies in headers and changes nothing


@pytest.mark.parametrize("draft", [False, True])
def test_a_crash_at_any_byte_loses_only_what_was_not_acknowledged(tmp_path, draft):
    """Groups 0 and 1 were acknowledged; the segment of group 2 is cut, before and after its rename."""
    buffer = make.opened(tmp_path, range(2))
    buffer.flush()
    assert buffer.acknowledged == 2
    buffer.insert(make.versioned([2]))
    buffer.flush()
    file = files(tmp_path)[-1]
    whole = file.read_bytes()
    file.unlink()
    torn = file.with_name(f".{file.name}.0123abcd.tmp") if draft else file
    for size in [*range(0, len(whole), 257), len(whole) - 1]:
        torn.write_bytes(whole[:size])
        again = make.opened(tmp_path)
        assert make.held_by(again) == make.expected([0, 1])
        assert again.statistics()["dropped/unfinished_files" if draft else "dropped/torn"] == 1
        again.insert(make.versioned([7]))
        again.flush()
        assert make.held_by(make.opened(tmp_path)) == make.expected([0, 1, 7])
        files(tmp_path)[-1].unlink()


@pytest.mark.parametrize("sampler", make.SAMPLERS.values(), ids=make.SAMPLERS)
def test_a_resumed_run_draws_what_the_uninterrupted_one_did(tmp_path, sampler):
    """The state is saved at step 4, the run crashes at step 7 and is resumed from step 4."""
    arguments = (make.LAYOUT, replay.BufferLimits(groups=20, staleness=6), sampler)

    def go(buffer, steps):
        """Inserts and draws; returns all that it drew."""
        drawn = []
        for step in steps:
            numbers = range(10 * step, 10 * step + 7)
            buffer.insert([make.experience(n, version=step, problem=n % 3) for n in numbers])
            for turn in range(2):
                draw = buffer.sample(4, seed=10 * step + turn)
                drawn.append((draw.ids.tolist(), draw.uses.tolist(), make.contents(draw.columns)))
        return drawn

    def statistics(buffer):
        return {n: x for n, x in buffer.statistics().items() if n != "dropped/superseded"}

    buffer = replay.ReplayBuffer(*arguments, folder=tmp_path, segment_groups=5)
    go(buffer, range(4))
    state, before = buffer.state(), statistics(buffer)
    drawn, after = go(buffer, range(4, 7)), statistics(buffer)
    again = replay.ReplayBuffer(*arguments, folder=tmp_path, state=state, segment_groups=5)
    assert again.statistics()["dropped/superseded"] > 0
    assert statistics(again) == before
    assert go(again, range(4, 7)) == drawn
    assert statistics(again) == after


def test_a_folder_belongs_to_one_buffer_of_one_layout(tmp_path):
    buffer = make.opened(tmp_path, range(2))
    buffer.flush()
    other = replace(make.LAYOUT, vocab_size=500)
    with pytest.raises(ValueError, match="has vocab_size = 300, the buffer 500"):
        replay.ReplayBuffer(other, replay.BufferLimits(), replay.fifo, folder=tmp_path)
    rival = make.opened(tmp_path)
    for one in (buffer, rival):
        one.insert([make.experience(3)])
    buffer.flush()
    with pytest.raises(ValueError, match="is there already; one folder belongs to one buffer"):
        rival.flush()


def test_a_runs_folder_is_not_opened_beside_the_run(tmp_path):
    with holder(tmp_path) as process:
        with pytest.raises(ValueError, match=f"in use by process {process.pid}"):
            make.opened(tmp_path / "experience")
        process.kill()
    with lock.held(tmp_path, "the run"):
        make.opened(tmp_path / "experience")
        assert not lock.belongs_here(tmp_path / "experience")


def swap(first, other):
    aside = first.with_name("aside")
    first.rename(aside)
    other.rename(first)
    aside.rename(other)


def rewrite(change):
    return lambda first, *_: pq.write_table(change(pq.read_table(first)), first)


RENAMED = "groups-000000000100-000000000102.parquet"
SPOILT = {
    "torn": (lambda first, *_: first.write_bytes(first.read_bytes()[:-1]), 0),
    "swapped": (lambda first, second, last: swap(first, second), 0),
    "swapped with the newest": (lambda first, second, last: swap(first, last), 0),
    "copied over": (lambda first, second, last: shutil.copy(first, second), 1),
    "renamed": (lambda first, *_: first.rename(first.with_name(RENAMED)), None),
    "reordered": (rewrite(lambda table: table.take([*reversed(range(table.num_rows))])), 0),
    "cut": (rewrite(lambda table: table.slice(0, 3)), 0),
    "without ids": (rewrite(lambda t: t.set_column(0, "group", pa.nulls(len(t), pa.int64()))), 0),
    "without a column": (rewrite(lambda table: table.drop_columns(["log_probs"])), 0),
}


@pytest.mark.parametrize("case", SPOILT)
def test_a_segment_that_does_not_hold_the_groups_of_its_name_is_refused_by_name(tmp_path, case):
    spoil, wrong = SPOILT[case]
    state = make.opened(tmp_path, range(6), segment_groups=2).state()
    assert make.held_by(make.opened(tmp_path, state=state)) == make.held_by(make.opened(tmp_path))
    names = [file.name for file in files(tmp_path)]
    spoil(*files(tmp_path))
    name = RENAMED if wrong is None else names[wrong]
    kind, message = replay.MisplacedSegment, name
    if case == "torn":
        kind, message = replay.BrokenSegment, f"{name} cannot be read"
    with pytest.raises(kind, match=message) as caught:
        make.opened(tmp_path)
    if wrong is None:
        kind, message = ValueError, "2 groups of the state, the first 0, are in no segment"
    with pytest.raises(kind, match=message):
        make.opened(tmp_path, state=state)
    assert not (tmp_path / ASIDE).exists()  # groups 100 on, too: what is refused moves no file
    if case == "swapped":
        assert "holds groups 2 to 3 in 4 rows, its name says groups 0 to 1" in str(caught.value)


def test_a_segment_of_another_run_with_the_same_numbers_is_refused(tmp_path):
    state = make.opened(tmp_path / "ours", range(6), segment_groups=2).state()
    make.opened(tmp_path / "theirs", range(10, 16), segment_groups=2).flush()
    wrong = files(tmp_path / "theirs")[1]
    shutil.copy(wrong, tmp_path / "ours")
    with pytest.raises(
        replay.MisplacedSegment, match=rf"{wrong.name} has SHA-256 .* another run's"
    ):
        make.opened(tmp_path / "ours", state=state)
