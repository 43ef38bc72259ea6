"""The study of reuse: what is chosen on which seeds, and that it runs, stops and goes on."""

import json
import math
from dataclasses import replace

import pytest
from rich.console import Console

from experiments.reuse import main as reuse
from experiments.reuse.methods import METHODS
from experiments.reuse.report import best_rates, lines, paired, warning
from ogrpo.trainer import Schedule
from ogrpo.trainer.config import WarmStart


def row(method, steps, rate, seed, score, tuning):
    return {
        "method": method,
        "steps": steps,
        "rate": rate,
        "seed": seed,
        "pass@1": score,
        "greedy": score,
        "tuning": tuning,
        "completions": steps * 128,
        "updates": steps,
    }


ROWS = [
    *(row("on-policy", 8, rate, 20, s, True) for rate, s in [(1e-3, 0.5), (2e-3, 0.4)]),
    *(row("on-policy", 8, rate, 21, s, True) for rate, s in [(1e-3, 0.5), (2e-3, 0.7)]),
    *(row("positives-4", 4, rate, 20, s, True) for rate, s in [(1e-3, 0.6), (2e-3, 0.1)]),
    *(row("on-policy", 8, 2e-3, seed, s, False) for seed, s in [(10, 0.50), (11, 0.70)]),
    *(row("positives-4", 4, 1e-3, seed, s, False) for seed, s in [(11, 0.74), (10, 0.52)]),
]


def test_the_learning_rate_is_the_best_on_average_over_the_tuning_seeds_alone():
    assert best_rates(ROWS) == {("on-policy", 8): 2e-3, ("positives-4", 4): 1e-3}


def test_methods_are_compared_seed_by_seed():
    ours = [r for r in ROWS if r["method"] == "positives-4" and not r["tuning"]]
    theirs = [r for r in ROWS if r["method"] == "on-policy" and not r["tuning"]]
    mean, error = paired(ours, theirs)
    assert mean == pytest.approx(0.03)  # .52 - .50 and .74 - .70
    assert error == pytest.approx(0.01)


def test_a_line_is_of_the_fresh_seeds_against_the_whole_budget():
    table = {line["method"]: line for line in lines(ROWS)}
    assert table["positives-4"]["pass@1"] == pytest.approx(0.63)
    assert table["positives-4"]["gap"] == pytest.approx(0.03)
    assert table["on-policy"]["gap"] == 0
    better = [row("positives-1", 8, 1e-3, seed, 0.9, False) for seed in (10, 11)]
    table = {line["method"]: line for line in lines([*ROWS, *better])}
    assert table["positives-4"]["gap"] == pytest.approx(0.63 - 0.9)
    assert table["positives-4"]["completions"] == 512


def test_a_signal_is_judged_by_how_it_ranks_runs_that_collapsed():
    def run(end, kl, ess):
        return {"curve": [[0, 0.4]], "pass@1": end, "kl/pi_mu": kl, "ess": ess}

    rows = [
        run(0.1, [0.3, None, 9.0], [0.5] * 3),
        run(0.2, [0.1, 0.1, 9.0], [1.0] * 3),
        run(0.7, [0.2, 0.2, 0.0], [1.0] * 3),
    ]
    assert warning(rows, "kl/pi_mu", 0.5) == 0.5  # .3 and .1 against .2
    assert warning(rows, "ess", 0.5) == 0.75  # less is worse; one tie
    assert math.isnan(warning(rows[:2], "ess", 0.5))


def test_tuning_and_fresh_seeds_are_kept_apart():
    with pytest.raises(ValueError, match=r"seeds \[3\] are both for tuning and fresh"):
        reuse.ReuseStudy(tuning_seeds=(3, 4), fresh_seeds=(2, 3))


def test_rows_that_cannot_be_compared_are_not_mixed(tmp_path):
    wanted = reuse.ReuseStudy(run_dir=tmp_path / "study")
    reuse.open_folder(wanted)
    assert reuse.open_folder(wanted).path == tmp_path / "study"
    with pytest.raises(ValueError, match=r"prompts is 8, but the rows in .* are of 256"):
        reuse.open_folder(replace(wanted, prompts=8))


def test_a_row_cut_off_by_a_crash_is_dropped_and_the_rest_is_kept(tmp_path):
    reuse.write_row(tmp_path, 0, {"trial": "a"})
    with (tmp_path / "rows-0.jsonl").open("a") as file:
        file.write('{"trial": "b", "cur')
    assert [r["trial"] for r in reuse.read_rows(tmp_path)] == ["a"]
    reuse.write_row(tmp_path, 0, {"trial": "c"})
    assert [r["trial"] for r in reuse.read_rows(tmp_path)] == ["a", "c"]


def test_rows_at_a_rate_that_is_no_longer_chosen_do_not_count():
    other = [row("on-policy", 8, 1e-3, seed, 0.9, False) for seed in (10, 11)]
    table = {line["method"]: line for line in lines([*ROWS, *other])}
    assert table["on-policy"]["pass@1"] == pytest.approx(0.6)


def test_an_unknown_method_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"no method 'replay-3'.*positives-4"):
        reuse.ReuseStudy(methods=("replay-3",))


def test_every_method_buys_the_same_and_uses_it_as_its_name_says():
    study = reuse.ReuseStudy()
    dials = {}
    for method in METHODS:
        config = reuse.trial_config(study, reuse.Trial(method, 60, 1e-3, 0))
        schedule: Schedule = config.schedule
        assert (schedule.steps, schedule.prompts, config.rollout.group_size) == (60, 16, 8)
        dials[method] = (schedule.updates_per_batch * schedule.replay, schedule.sync_interval)
    assert dials["on-policy"] == (1, 1)
    assert dials["v10-i1"] == (1, 10)
    named = [name for name in METHODS if name[-1].isdigit() and not name.startswith("v10")]
    assert [dials[name][0] for name in named] == [int(name[-1]) for name in named]


def test_the_study_goes_on_where_it_was_stopped_and_reports_once(tmp_path):
    folder = tmp_path / "study"
    wanted = reuse.ReuseStudy(
        methods=("on-policy", "adaptive-8"),
        steps=4,
        rates=(1e-3,),
        tuning_seeds=(20,),
        fresh_seeds=(10, 11),
        prompts=4,
        run_dir=folder,
        warm_start=WarmStart(steps=2, batch=4, problems=8, demonstrations=2, cache=False),
    )
    quiet = Console(quiet=True)
    assert reuse.run(wanted, quiet) == 0
    rows = [r["trial"] for r in reuse.read_rows(folder)]
    assert len(rows) == len(set(rows)) == 9  # 3 budgets x (1 tuning + 2 fresh)
    file = folder / "rows-0.jsonl"
    whole = [json.loads(line) for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps(r) + "\n" for r in whole[:-1]))
    assert reuse.run(wanted, quiet) == 0
    again = list(reuse.read_rows(folder))[-1]
    assert {k: v for k, v in again.items() if k != "seconds"} == {
        k: v for k, v in whole[-1].items() if k != "seconds"
    }
    assert (folder / "plots" / "signals.png").is_file()
