"""What a run leaves behind can be read by anyone, whatever its figures were."""

import json
import math
import os
import resource
import signal
import subprocess
import sys
from io import StringIO

import pytest
from rich.console import Console

from ogrpo.report.compare import differences_table, results_table, write_page
from ogrpo.report.plots import divergence, plots, points
from ogrpo.report.run_dir import RunDir, RunDirError


def refuse(constant):
    raise AssertionError(f"{constant} is no JSON")


def test_a_figure_that_is_not_finite_is_null_and_named(tmp_path):
    run = RunDir.create(tmp_path / "run")
    sick = {
        "kl/mu_pi": math.nan,
        "ess": 0.5,
        "reuse/use": math.inf,
        "deep": {"a": [1.0, -math.inf]},
    }
    with run.metrics_writer() as metrics:
        metrics.write({"step": 1, "completions": 8, **sick})
        metrics.write({"step": 2, "completions": 16, "kl/mu_pi": 0.25, "ess": 0.5})
    lines = run.metrics.read_text().splitlines()
    first, second = (json.loads(line, parse_constant=refuse) for line in lines)
    assert (first["kl/mu_pi"], first["ess"], first["reuse/use"]) == (None, 0.5, None)
    assert first["deep"] == {"a": [1.0, None]}
    assert first["nonfinite"] == ["kl/mu_pi", "reuse/use", "deep/a"]
    assert second["nonfinite"] == []
    assert points(run.read_metrics(), "kl/mu_pi") == ([16], [0.25])
    assert divergence(run.read_metrics()).axes[0].lines


def test_records_stay_what_they_were_when_a_run_is_rewound(tmp_path):
    run = RunDir.create(tmp_path / "run")
    run.metrics.write_text('{"step": 1, "kl": NaN}\n{"step": 2, "kl": 0.5}\n')  # of before
    run.rewind(1)
    run.rewind(1)
    assert run.read_metrics() == [{"step": 1, "kl": None, "nonfinite": ["kl"]}]


def test_certificates_are_drawn_where_there_are_any():
    assert "certificate" not in plots([{"certificate/mean": None}, {}])
    assert "certificate" in plots([{"certificate/mean": None}, {"certificate/mean": 0.1}])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not JSON"),
        ("{", "is not JSON"),
        ("[" * 100_000, "nested deeper"),
        ('{"seed": NaN}', "NaN"),
        ("[1]", "holds no options"),
    ],
)
def test_a_damaged_config_is_named_with_a_remedy(tmp_path, text, message):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(RunDirError, match=rf"(?s)config\.json.*{message}.*mend it, or put back"):
        RunDir.reopen(tmp_path).read_config()


def test_a_config_that_cannot_be_written_leaves_the_one_before(tmp_path):
    run, limits = RunDir.create(tmp_path / "run"), resource.getrlimit(resource.RLIMIT_FSIZE)
    run.write_config({"seed": 1})
    resource.setrlimit(resource.RLIMIT_FSIZE, (5, limits[1]))
    try:
        with pytest.raises(OSError, match=r"config\.json"):
            run.write_config({"seed": 2})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert run.read_config() == {"seed": 1}


def test_a_run_is_held_by_one_and_the_other_is_told_by_whom(tmp_path):
    run = RunDir.create(tmp_path / "run")
    with run.held("ogrpo train [red]"):
        second = RunDir.create(tmp_path / "run").held("another")
        with pytest.raises(RunDirError, match=rf"in use by process {os.getpid()} on .*\[red\]"):
            second.__enter__()
    with run.held("later") as warning:
        assert warning is None
    assert RunDir.create(tmp_path / "run").path == run.path  # its lock alone is no run


def test_names_of_runs_are_no_markup(tmp_path):
    console = Console(file=StringIO(), width=200)
    runs = []
    for name in ("[bold red]x[/]", "$_[y"):
        run = RunDir.create(tmp_path / name.replace("/", "|"))
        scores = {f"pass@1/{how}{end}": 0.5 for how in ("sampled", "greedy") for end in ENDS}
        counts = dict.fromkeys(("completions", "updates", "flops/update", "flops/rollout"), 1)
        with run.metrics_writer() as metrics:
            metrics.write({"step": 0, **scores, **counts})
        run.write_config({"task": run.path.name})
        runs.append(run)
    console.print(results_table(runs))
    console.print(differences_table(runs))
    for run in runs:
        assert console.file.getvalue().count(run.path.name) == 3
    write_page(runs, tmp_path / "page.html")


ENDS = ("", "/low", "/high")


KILLED = """
import os, pathlib, signal, sys
from ogrpo.system.files import replacing
with replacing(pathlib.Path(sys.argv[1])) as file:
    file.write("half")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def killed_while_writing(path):
    """A process of its own, killed in the middle of a file; gives what it left."""
    path.parent.mkdir(parents=True, exist_ok=True)
    done = subprocess.run([sys.executable, "-c", KILLED, path], check=False)
    assert done.returncode == -signal.SIGKILL
    assert not path.exists()
    (left,) = path.parent.glob(f".{path.name}.*")
    return left


def test_a_run_killed_before_it_had_begun_can_be_started_again(tmp_path):
    run = RunDir(tmp_path)
    left = killed_while_writing(run.config)
    with pytest.raises(RunDirError, match="leave out --resume to start a new run"):
        RunDir.reopen(tmp_path)
    with RunDir.create(tmp_path).held("again"):
        assert not left.exists()
    (tmp_path / ".notes.tmp").touch()  # somebody's own
    with pytest.raises(RunDirError, match=r"is not empty \(it has \.notes\.tmp\)"):
        RunDir.create(tmp_path)


def test_half_a_model_is_deleted_when_the_run_goes_on(tmp_path):
    run = RunDir(tmp_path)
    run.write_config({})
    folders = (run.model, run.adapter, run.initial, run.plots)
    left = [killed_while_writing(folder / "model.safetensors") for folder in folders]
    (run.model / "mine.tmp").touch()
    with RunDir.reopen(tmp_path).held("again"):
        assert not any(file.exists() for file in left)
        assert (run.model / "mine.tmp").exists()
