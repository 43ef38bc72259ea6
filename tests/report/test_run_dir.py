"""A run's folder can be read by anyone, whatever its figures were."""

import math
import os
import resource

import pytest

from ogrpo.report.curves import columns
from ogrpo.report.run_dir import MetricsWriter, RunDir, RunDirError, read_records
from ogrpo.system.files import parse_json, replacing


def test_a_figure_that_is_not_finite_is_null_and_named(tmp_path):
    run = RunDir.create(tmp_path / "run")
    sick = {"kl/mu_pi": math.nan, "ess": 0.5, "reuse/use": math.inf}
    sick["deep"] = {"a": [1.0, -math.inf]}
    with MetricsWriter(run.metrics) as metrics:
        metrics.write({"step": 1, "completions": 8, **sick})
        metrics.write({"step": 2, "completions": 16, "kl/mu_pi": 0.25, "ess": 0.5})
    lines = run.metrics.read_text().splitlines()
    first, second = (parse_json(line, "a record") for line in lines)  # which knows no NaN
    assert (first["kl/mu_pi"], first["ess"], first["reuse/use"]) == (None, 0.5, None)
    assert first["deep"] == {"a": [1.0, None]}
    assert first["nonfinite"] == ["kl/mu_pi", "reuse/use", "deep/a"]
    assert second["nonfinite"] == []
    assert columns(run.read_metrics(), ["kl/mu_pi"])["kl/mu_pi"] == [None, 0.25]


def test_records_stay_what_they_were_when_a_run_is_rewound(tmp_path):
    run = RunDir.create(tmp_path / "run")
    run.metrics.write_text('{"step": 1, "kl": NaN}\n{"step": 2, "kl": 0.5}\n')  # of before
    run.tokens.write_text('{"step": 1, "completions": []}\n{"step": 2, "completions": []}\n')
    run.certificates.write_text('{"step": 1}\n{"step": 2}\n')
    run.rewind(1, beside=2)  # the evaluation of step 2 has failed
    assert [line["step"] for line in read_records(run.tokens)] == [1, 2]
    assert len(read_records(run.certificates)) == 2
    run.rewind(1, keep=True)
    run.rewind(1)
    assert [line["step"] for line in read_records(tmp_path / "run/tokens.aside.jsonl")] == [2]
    assert run.read_metrics() == [{"step": 1, "kl": None, "nonfinite": ["kl"]}]
    assert [line["step"] for line in read_records(run.tokens)] == [1]


@pytest.mark.parametrize(("text", "message"), [("{", "is not JSON"), ("[1]", "hold a JSON object")])
def test_a_damaged_config_is_named_with_a_remedy(tmp_path, text, message):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(RunDirError, match=rf"(?s)config\.json.*{message}.*mend it, or put back"):
        RunDir.reopen(tmp_path).read_config()


@pytest.mark.parametrize("name", ["a\nb", "\udcff"])
def test_a_folder_whose_name_cannot_be_printed_is_refused(tmp_path, name):
    with pytest.raises(RunDirError, match="cannot be printed"):
        RunDir.create(tmp_path / name)


def test_a_run_is_held_by_one_and_the_other_is_told_by_whom(tmp_path):
    run = RunDir.create(tmp_path / "run")
    with run.held("ogrpo train [red]"):
        second = RunDir.create(tmp_path / "run").held("another")
        with pytest.raises(RunDirError, match=rf"in use by process {os.getpid()} on .*\[red\]"):
            second.__enter__()
    with run.held("later") as warning:
        assert warning is None
    assert RunDir.create(tmp_path / "run").path == run.path  # its lock alone is no run


def test_a_run_killed_before_it_had_begun_can_be_started_again(tmp_path):
    killed = replacing(RunDir(tmp_path).config)
    killed.__enter__()  # and never left, as by a process that is killed in the middle
    (left,) = tmp_path.iterdir()
    for folder in ("tensorboard", "wandb"):  # trackers open before the first weights are made
        (tmp_path / folder).mkdir()
    with pytest.raises(RunDirError, match="leave out --resume to start a new run"):
        RunDir.reopen(tmp_path)
    with RunDir.create(tmp_path).held("again"):
        assert not left.exists()
    (tmp_path / ".notes.tmp").touch()  # somebody's own
    with pytest.raises(RunDirError, match=r"is not empty \(it has \.notes\.tmp\)"):
        RunDir.create(tmp_path)


@pytest.fixture
def run(tmp_path) -> RunDir:
    run = RunDir.create(tmp_path / "[bold] run")
    with MetricsWriter(run.metrics) as metrics:
        for step in range(5):
            metrics.write({"step": step, "reward": 0.5})
    return run


def steps(run: RunDir) -> list[int]:
    return [record["step"] for record in run.read_metrics()]


def test_a_line_that_a_crash_cut_off_is_left_out(run):
    with run.metrics.open("a") as file:
        file.write('{"step": 5, "rew')
    assert steps(run) == [0, 1, 2, 3, 4]
    assert tuple(run.rewind(4)) == (0, 0, 4)
    with MetricsWriter(run.metrics) as metrics:
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
    assert tuple(run.rewind(1)) == (3, 1, 1)
    assert steps(run) == [0, 1]


def test_a_disk_that_is_full_in_the_middle_of_a_line_leaves_the_lines_before(run):
    size, limits = run.metrics.stat().st_size, resource.getrlimit(resource.RLIMIT_FSIZE)
    with MetricsWriter(run.metrics) as metrics:
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
