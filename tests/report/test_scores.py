"""What is called Pass@1 is a share of verdicts; all else is a mean reward, on fitting axes."""

import pytest
from rich.console import Console

from ogrpo.report.curves import SHARE, charts
from ogrpo.report.progress import live_text, summary_table
from ogrpo.report.scores import evaluations, reward_rows, scores


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
    titles = {chart.title: chart for chart in charts(evaluated)}
    first = next(iter(titles.values()))
    assert ("Pass@1" in first.title) == share
    assert first.limits == (SHARE if share else (None, None))
    assert titles["Training reward"].limits == (None, None)  # of any size
    shown = live_text(evaluated[0])
    assert ("Pass@1" in shown, "held-out reward" in shown) == (share, not share)
    console = Console(width=200, record=True, quiet=False, file=None)
    with console.capture() as told:
        console.print(summary_table(records))
    assert ("Pass@1" in told.get()) == share
    several = len(rewards) > 1
    assert ("Held-out rewards, each by itself" in titles) == several
    assert [row[0] for row in reward_rows(evaluated)] == ([*rewards] if several else [])
