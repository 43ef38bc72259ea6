"""What is called Pass@1 is a share of verdicts; all else is a mean reward, on fitting axes."""

import pytest
from rich.console import Console

from ogrpo.report.plots import heldout, plots, reward
from ogrpo.report.progress import live_text, summary_table
from ogrpo.report.scores import evaluations, interval, reward_rows, scores


def lines(prefix, value, half=0.1):
    return {
        f"{prefix}/{how}{end}": found
        for how in ("sampled", "greedy")
        for end, found in (("", value), ("/low", value - half), ("/high", value + half))
    }


def record(step, rewards, by=None, pass_at_4=None):
    """The held-out figures of a record: each reward's mean, their sum, and Pass@1 where one is."""
    found = {"step": step, "completions": 8 * step, "heldout/temperature": 0.7}
    found |= lines("heldout/reward", sum(rewards.values()))
    for name, value in rewards.items():
        found |= lines(f"heldout/reward/{name}", value)
    found |= lines("pass@1", rewards[by]) if by else {}
    return {**found, "pass@4/sampled": pass_at_4, "reward": sum(rewards.values())}


TABLE = [
    # rewards, which decides, Pass@4 of it; labels, and whether axes end at 1
    ({"math": 0.3}, "math", 0.5, ["Pass@1", "Pass@1, greedy", "Pass@4"], True),
    ({"math": 0.3}, "math", None, ["Pass@1", "Pass@1, greedy"], True),
    ({"near": 0.3}, None, None, ["mean reward", "mean reward, greedy"], False),
    ({"near": 0.4, "length": 0.7}, None, None, ["mean reward", "mean reward, greedy"], False),
    (
        {"math": 0.4, "length": 0.7},
        "math",
        None,
        ["Pass@1", "Pass@1, greedy", "mean reward", "mean reward, greedy"],
        True,
    ),
]


@pytest.mark.parametrize(("rewards", "by", "pass_at_4", "labels", "share"), TABLE)
def test_a_figure_is_what_its_name_says(rewards, by, pass_at_4, labels, share):
    records = [record(0, rewards, by, pass_at_4), {"step": 1}, record(2, rewards, by, pass_at_4)]
    evaluated = evaluations(records)
    assert [r["step"] for r in evaluated] == [0, 2]
    found = scores(evaluated)
    assert [score.label.removesuffix(", sampled at T = 0.7") for score in found] == labels
    assert [score.is_share for score in found] == [label[:4] == "Pass" for label in labels]
    axes = heldout(evaluated).axes[0]
    assert ("Pass@1" in axes.get_title(loc="left")) == share
    assert (axes.get_ylim() == (0, 1)) == share
    assert low_and_high(axes) if not share else True
    shown = live_text(evaluated[0])
    assert ("Pass@1" in shown, "held-out reward" in shown) == (share, not share)
    console = Console(width=200, record=True, quiet=False, file=None)
    with console.capture() as told:
        console.print(summary_table(records))
    assert ("Pass@1" in told.get()) == share
    several = len(rewards) > 1
    assert ("rewards" in plots([{**r, "sync/count": 0} for r in evaluated])) == several
    assert [row[0] for row in reward_rows(evaluated)] == ([*rewards] if several else [])


def low_and_high(axes):
    """Whether the axes hold the whole of the lines' values."""
    low, high = axes.get_ylim()
    return all(low <= y <= high for line in axes.lines for y in line.get_ydata())


def test_training_rewards_beyond_one_are_not_cut():
    records = [{"completions": n, "reward": 1 + n, "zero_variance": 0.5} for n in range(3)]
    earned, shares = reward(records).axes
    assert low_and_high(earned)
    assert shares.get_ylim() == (0, 1)
    (both,) = reward([{"completions": 1, "reward": 0.5}]).axes
    assert both.get_ylim() == (0, 1)


def test_a_reward_that_became_graded_is_no_share():
    records = [record(0, {"near": 0.0}, "near"), record(2, {"near": 0.4})]
    assert [score.label for score in scores(records)][-1] == "mean reward, greedy"
    assert not any(score.is_share for score in scores(records))


def test_an_interval_that_is_not_known_is_left_out():
    assert interval({"x": 0.5, "x/low": None, "x/high": None}, "x") == "0.500"
    assert interval({"x": 0.5, "x/low": 0.4, "x/high": 0.6}, "x") == "0.500  [0.400, 0.600]"
    assert interval({"x": None}, "x") == "none"


def test_runs_of_before_are_still_read():
    old = [{**lines("pass@1", 0.5), "pass@1/temperature": 1.0, "completions": 0, "step": 0}]
    assert [s.label for s in scores(evaluations(old))] == [
        "Pass@1, sampled at T = 1",
        "Pass@1, greedy",
    ]
