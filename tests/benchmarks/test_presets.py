"""The runner of presets over seeds: what it asks for, what its table says, and two real runs."""

import json
import shutil

import pytest

from benchmarks import presets
from benchmarks.presets import DEFAULT, Setting, cell, main, parse, read_rows, summary, write_row

SCORES = ("pass@1/sampled", "pass@1/greedy", "pass@8/sampled")


def row(seed, after, before=(0.4, 0.6, 0.9), preset="v1-i1", options=(), split="test", **changes):
    return {
        "preset": preset,
        "options": list(options),
        "seed": seed,
        "split": split,
        "before": dict(zip(SCORES, before, strict=True)),
        "after": dict(zip(SCORES, after, strict=True)),
        "completions": 1280,
        "updates": 10,
        "seconds": 50.0,
        "jax": "0.10.2",
        "revision": "abc",
    } | changes


def wanted(*options):
    return parse(
        ["--presets", "v1-i1", "--seeds", "1", "2", "3", "4", "--out", "somewhere", *options]
    )


def cells_of(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_table_is_mean_and_standard_error_over_seeds():
    after = [(0.7, 0.8, 1.0), (0.8, 0.8, 0.9), (0.9, 0.8, 0.95), (1.0, 0.8, 0.91)]
    rows = [row(seed, found, updates=seed * 10) for seed, found in enumerate(after, start=1)]
    head, _, line, _, note = summary(wanted(), rows)
    shown = dict(zip(cells_of(head), cells_of(line), strict=True))
    assert shown == {
        "setting": "`v1-i1`",
        "seeds": "1 2 3 4",
        "sampled, before": "0.400 ± 0.000",
        "sampled, after": "0.850 ± 0.065",  # sqrt(.05 / 3 / 4)
        "greedy, before": "0.600 ± 0.000",
        "greedy, after": "0.800 ± 0.000",
        "Pass@8, before": "0.900 ± 0.000",
        "Pass@8, after": "0.940 ± 0.023",  # sqrt(.0062 / 3 / 4)
        "completions": "1,280",
        "updates": "25",
        "s a run": "50",
    }
    assert "split `test`" in note
    assert note.endswith("settings tried on this split in somewhere: 1.")


def test_one_seed_has_no_error():
    assert cell([0.5]) == "0.500"


def test_rows_of_other_seeds_splits_presets_and_options_are_left_out_and_missing_runs_told():
    rows = [
        row(1, (0.5, 0.5, 0.5)),
        row(9, (0.0, 0.0, 0.0)),
        row(2, (0.0, 0.0, 0.0), split="validation"),
        row(2, (0.0, 0.0, 0.0), preset="v10-i1"),
        row(2, (0.0, 0.0, 0.0), options=["--schedule.sync-interval", "2"]),
    ]
    _, _, line, *rest = summary(wanted(), rows)
    assert cells_of(line)[1:4] == ["1", "0.400", "0.500"]
    assert rest[1].endswith("tried on this split in somewhere: 3.")
    assert rest[2] == "3 of 4 runs have not ended."


def test_rows_of_other_code_are_told():
    rows = [row(1, (0.5, 0.5, 0.5)), row(2, (0.5, 0.5, 0.5), revision="def+")]
    assert "commit abc, def+" in "\n".join(summary(wanted(), rows))


def test_runs_without_a_common_number_of_samples_have_no_pass_at_k():
    fewer = row(2, (0.5, 0.5, 0.5))
    fewer["after"]["pass@4/sampled"] = fewer["after"].pop("pass@8/sampled")
    fewer["before"]["pass@4/sampled"] = fewer["before"].pop("pass@8/sampled")
    assert "Pass@" not in "\n".join(summary(wanted(), [row(1, (0.5, 0.5, 0.5)), fewer]))


def test_a_grid_is_every_preset_with_every_entry_and_the_common_options():
    asked = wanted(
        "--set",
        "--schedule.sync-interval 2",
        "--grid",
        "",
        "--optimizer.learning-rate 3e-4",
        " --a",
    )
    common, rate = ("--schedule.sync-interval", "2"), ("--optimizer.learning-rate", "3e-4")
    options = [common, (*common, *rate), (*common, "--a")]
    assert presets.settings_of(asked) == [Setting("v1-i1", o) for o in options]
    runs = presets.runs_of(asked)
    assert len({run.key for run in runs}) == len({run.folder(asked.out) for run in runs}) == 12
    assert [run.seed for run in runs[:4]] == [1, 1, 1, 2]


def test_the_command_is_the_studys_own(tmp_path):
    for name in (DEFAULT, "v1-i1"):
        (run,) = presets.runs_of(
            parse(
                [
                    "--presets",
                    name,
                    "--seeds",
                    "7",
                    "--out",
                    "x",
                    "--set",
                    "--schedule.sync-interval 2",
                ]
            )
        )
        preset = [] if name == DEFAULT else ["--preset", name]
        command = run.command(tmp_path)
        assert command[1:4] == ["-m", "experiments.run", "gsm8k"]
        own = ["--seed", "7", "--evaluation.split", "test", "--run-dir", str(run.folder(tmp_path))]
        assert command[4:] == [*preset, *own, "--schedule.sync-interval", "2"]


@pytest.mark.parametrize("option", ["--seed 3", "--run_dir=here", "--evaluation.split test"])
def test_an_option_that_the_runner_gives_is_refused(option, capsys):
    with pytest.raises(SystemExit):
        wanted("--grid", f" {option}")
    assert f"{option.split()[0].split('=')[0].replace('_', '-')} is given to each run" in (
        capsys.readouterr().err
    )


def test_a_row_that_was_cut_off_is_replaced(tmp_path):
    write_row(tmp_path, row(1, (0.5, 0.5, 0.5)))
    with (tmp_path / "rows.jsonl").open("a") as file:
        file.write('{"preset": "v1')
    write_row(tmp_path, row(2, (0.5, 0.5, 0.5)))
    assert [r["seed"] for r in read_rows(tmp_path)] == [1, 2]


TINY = (
    "--data.train=64 --schedule.stages=1 --warm-start.steps=4 --warm-start.batch=4 --warm-start.problems=16 "
    "--rollout.group-size=4 --schedule.prompts=4 --schedule.steps=2 --evaluation.prompts=6"
)


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("presets")


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OGRPO_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


def command(out, *options):
    return [
        "--presets",
        "v1-i1",
        "--seeds",
        "3",
        "--split",
        "validation",
        "--out",
        str(out),
        *options,
    ]


@pytest.mark.slow
def test_real_runs_leave_rows_a_table_and_are_not_done_again(out, capsys):
    grid = ["--set", TINY, "--grid", "", "--schedule.updates-per-batch 2", "--jobs", "2"]
    assert main(command(out, *grid)) == 0
    plain, twice = sorted(read_rows(out), key=lambda found: len(found["options"]))
    assert (plain["preset"], plain["seed"], plain["split"]) == ("v1-i1", 3, "validation")
    assert (plain["completions"], plain["updates"], twice["updates"]) == (32, 2, 4)
    assert {*plain["after"]} >= {"pass@1/sampled", "pass@1/greedy", "pass@4/sampled"}
    (config, *_) = (out / "runs").glob("v1-i1-*/config.json")
    assert json.loads(config.read_text())["evaluation"]["split"] == "validation"
    shown = capsys.readouterr().out
    assert "Pass@4, after" in shown
    assert f"settings tried on this split in {out}: 2." in shown
    shutil.rmtree(out / "runs")
    assert main(command(out, *grid)) == 0
    assert not (out / "runs").exists()
    assert len(read_rows(out)) == 2


@pytest.mark.slow
def test_a_run_that_fails_is_told_and_leaves_no_row(tmp_path, capsys):
    assert main(command(tmp_path, "--set", "--knobs.beta -1")) == 1
    assert read_rows(tmp_path) == []
    shown = capsys.readouterr()
    assert "ended with 2" in shown.err
    assert "beta must be >= 0" in " ".join(shown.err.split())
    assert "no run has ended yet" in shown.out
