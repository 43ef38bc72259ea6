"""Segments in the place of others: renamed, swapped, copied, of another run."""

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ogrpo.data.replay import BufferLimits, Fifo, ReplayBuffer, segments
from ogrpo.data.replay.identity import MisplacedSegment
from tests.data.replay.make import LAYOUT, experience, facts

HELD = range(6)


def made(folder, numbers=HELD):
    """Two groups a segment."""
    buffer = ReplayBuffer(LAYOUT, BufferLimits(), Fifo, folder=folder, segment_groups=2)
    for number in numbers:
        buffer.insert([experience(number, version=number)])
    return buffer


def reopened(folder, state=None):
    return ReplayBuffer.open(folder, LAYOUT, BufferLimits(), Fifo, state=state)


def held_by(buffer):
    return [facts(one) for one in buffer._memory.read(buffer._table.all_live()).experiences]


def files(folder):
    return [segment.file for segment in segments.listed(folder)]


def swap(folder):
    first, second, _ = files(folder)
    first.rename(folder / "aside")
    second.rename(first)
    (folder / "aside").rename(second)
    return first


def swap_with_the_newest(folder):
    first, _, last = files(folder)
    first.rename(folder / "aside")
    last.rename(first)
    (folder / "aside").rename(last)
    return first


def copy_over(folder):
    first, second, _ = files(folder)
    shutil.copy(first, second)
    return second


def rename(folder):
    first, *_ = files(folder)
    return first.rename(first.with_name("groups-000000000100-000000000102.parquet"))


def reorder(folder):
    """The right groups, their rows the other way round."""
    first, *_ = files(folder)
    table = pq.read_table(first)
    pq.write_table(table.take(list(reversed(range(table.num_rows)))), first)
    return first


def cut_rows(folder):
    first, *_ = files(folder)
    pq.write_table(pq.read_table(first).slice(0, 3), first)
    return first


def lose_ids(folder):
    first, *_ = files(folder)
    table = pq.read_table(first)
    pq.write_table(table.set_column(0, "group", pa.nulls(table.num_rows, pa.int64())), first)
    return first


def lose_a_column(folder):
    first, *_ = files(folder)
    pq.write_table(pq.read_table(first).drop_columns(["log_probs"]), first)
    return first


MISPLACED = (
    *(swap, swap_with_the_newest, copy_over, rename),
    *(reorder, cut_rows, lose_ids, lose_a_column),
)


@pytest.mark.parametrize("misplace", MISPLACED, ids=lambda f: f.__name__)
def test_a_segment_that_holds_other_groups_than_its_name_says_is_refused_by_name(
    tmp_path, misplace
):
    state = made(tmp_path).state()
    assert held_by(reopened(tmp_path, state)) == held_by(reopened(tmp_path))
    wrong = misplace(tmp_path)
    for saved in (None, state) if misplace is not rename else (None,):
        with pytest.raises(MisplacedSegment, match=wrong.name) as caught:
            reopened(tmp_path, saved)
    assert not (tmp_path / segments.ASIDE).exists()
    if misplace is swap:
        assert "holds groups 2 to 3 in 4 rows, its name says groups 0 to 1" in str(caught.value)


def test_a_renamed_segment_is_missed_where_a_state_speaks_of_it(tmp_path):
    state = made(tmp_path).state()
    rename(tmp_path)
    with pytest.raises(ValueError, match="2 groups of the state, the first 0, are in no segment"):
        reopened(tmp_path, state)


def test_a_segment_of_another_run_with_the_same_numbers_is_refused(tmp_path):
    state = made(tmp_path / "ours").state()
    made(tmp_path / "theirs", range(10, 16)).flush()
    wrong = files(tmp_path / "theirs")[1]
    shutil.copy(wrong, tmp_path / "ours")
    with pytest.raises(MisplacedSegment, match=rf"{wrong.name} has SHA-256 .* another run's"):
        reopened(tmp_path / "ours", state)


def test_a_state_of_before_digests_is_read_and_its_next_has_them(tmp_path):
    buffer = made(tmp_path)
    state = buffer.state()
    assert len(state.pop("segments")) == 3
    again = reopened(tmp_path, state)
    assert held_by(again) == held_by(buffer)
    assert again.state() == buffer.state()


def test_files_of_format_1_are_compared_with_their_ids_too(tmp_path):
    shutil.copytree(Path(__file__).parent / "format_1", tmp_path, dirs_exist_ok=True)
    (file,) = files(tmp_path)
    moved = file.rename(file.with_name("groups-000000000004-000000000008.parquet"))
    with pytest.raises(MisplacedSegment, match="holds groups 0 to 3 in 8 rows"):
        segments.read(segments.listed(tmp_path)[0], LAYOUT)
    moved.rename(file)
    assert len(reopened(tmp_path)) == 4


def test_a_state_speaks_of_the_files_it_needs_and_no_others(tmp_path):
    buffer = ReplayBuffer(LAYOUT, BufferLimits(groups=3), Fifo, folder=tmp_path, segment_groups=1)
    for n in range(50):
        buffer.insert([experience(n, version=n)])
        state = buffer.state()
    assert [*state["segments"]] == [file.name for file in files(tmp_path)[-3:]]
    assert len(buffer._journal._digests) == 3  # flat, however long the run
