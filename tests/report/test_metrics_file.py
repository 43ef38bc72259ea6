"""metrics.jsonl: what a crash, a full disk or a stranger leaves in it is named by its line."""

import resource

import pytest

from ogrpo.report.run_dir import RunDir


@pytest.fixture
def run(tmp_path) -> RunDir:
    run = RunDir.create(tmp_path / "[bold] run")
    with run.metrics_writer() as metrics:
        for step in range(5):
            metrics.write({"step": step, "reward": 0.5})
    return run


def steps(run: RunDir) -> list[int]:
    return [record["step"] for record in run.read_metrics()]


def test_a_line_that_a_crash_cut_off_is_left_out(run):
    with run.metrics.open("a") as file:
        file.write('{"step": 5, "rew')
    assert steps(run) == [0, 1, 2, 3, 4]
    assert tuple(run.rewind(4)) == (0, 0)
    with run.metrics_writer() as metrics:
        metrics.write({"step": 5})
    assert steps(run) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    "line", [b"\0\0\0\0", b"\xff\xfe", b"garbage", b"[1]", b"{}", b'{"step": true}', b"[" * 10**5]
)
def test_a_line_that_is_no_record_is_named_and_nothing_changes(run, line):
    lines = run.metrics.read_bytes().splitlines(keepends=True)
    run.metrics.write_bytes(b"".join([*lines[:2], line + b"\n", *lines[2:]]))
    before = run.metrics.read_bytes()
    reads = [lambda: run.rewind(3)]
    if not line.startswith(b"{"):  # records of other studies have no steps
        reads.append(run.read_metrics)
    for read in reads:
        with pytest.raises(ValueError, match=r"metrics\.jsonl, line 3, is no.*mend or delete"):
            read()
    assert run.metrics.read_bytes() == before
    # What comes after the last record that stays is written again anyway.
    assert tuple(run.rewind(1)) == (3, 1)
    assert steps(run) == [0, 1]


def test_a_disk_that_is_full_in_the_middle_of_a_line_leaves_the_lines_before(run):
    size, limits = run.metrics.stat().st_size, resource.getrlimit(resource.RLIMIT_FSIZE)
    with run.metrics_writer() as metrics:
        # Python ignores the signal, so that the write comes back short, and the next one fails.
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, limits[1]))
        try:
            with pytest.raises(OSError, match=r"metrics\.jsonl"):
                metrics.write({"step": 5, "reward": 0.25})
            assert run.metrics.stat().st_size == size
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        metrics.write({"step": 5, "reward": 0.25})
    assert steps(run) == [0, 1, 2, 3, 4, 5]
