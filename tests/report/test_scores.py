"""Pass@1 is a share of verdicts; all else is a mean reward, on fitting axes."""

from io import StringIO

import pytest
from rich.console import Console

from ogrpo.report.curves import SHARE, charts
from ogrpo.report.progress import display, live_text, summary_table, warm_start_bar
from ogrpo.report.scores import evaluations, reward_rows, scores


def lines(prefix, value, half=0.1):
    return {
        f"{prefix}/{how}{end}": figure
        for how in ("sampled", "greedy")
        for end, figure in (("", value), ("/low", value - half), ("/high", value + half))
    }


def record(step, rewards, by=None, pass_at_4=None):
    """The held-out figures of a record: each reward's mean, their sum, and Pass@1 where one is."""
    evaluated_record = {"step": step, "completions": 8 * step, "heldout/temperature": 0.7}
    evaluated_record |= lines("heldout/reward", sum(rewards.values()))
    for name, value in rewards.items():
        evaluated_record |= lines(f"heldout/reward/{name}", value)
    evaluated_record |= lines("pass@1", rewards[by]) if by else {}
    return {**evaluated_record, "pass@4/sampled": pass_at_4, "reward": sum(rewards.values())}


PASS_1, MEAN = ["Pass@1", "Pass@1, greedy"], ["mean reward", "mean reward, greedy"]
TABLE = [
    # rewards, which decides, Pass@4 of it; labels, and whether axes end at 1
    ({"math": 0.3}, "math", 0.5, [*PASS_1, "Pass@4"], True),
    ({"math": 0.3}, "math", None, PASS_1, True),
    ({"near": 0.3}, None, None, MEAN, False),
    ({"near": 0.4, "length": 0.7}, None, None, MEAN, False),
    ({"math": 0.4, "length": 0.7}, "math", None, [*PASS_1, *MEAN], True),
]


@pytest.mark.parametrize(("rewards", "by", "pass_at_4", "labels", "share"), TABLE)
def test_a_figure_is_what_its_name_says(rewards, by, pass_at_4, labels, share):
    records = [record(0, rewards, by, pass_at_4), {"step": 1}, record(2, rewards, by, pass_at_4)]
    evaluated = evaluations(records)
    assert [r["step"] for r in evaluated] == [0, 2]
    lines_shown = scores(evaluated)
    assert [score.label.removesuffix(", sampled at T = 0.7") for score in lines_shown] == labels
    assert [score.is_share for score in lines_shown] == [label[:4] == "Pass" for label in labels]
    titles = {chart.title: chart for chart in charts(evaluated)}
    first = next(iter(titles.values()))
    assert ("Pass@1" in first.title) == share
    assert first.limits == (SHARE if share else (None, None))
    assert titles["Training reward"].limits == (None, None)  # of any size
    shown = live_text(evaluated[0])
    assert ("Pass@1" in shown, "held-out reward" in shown) == (share, not share)
    console = Console(width=200, record=True, quiet=False, file=None)
    with console.capture() as captured:
        console.print(summary_table(records))
    assert ("Pass@1" in captured.get()) == share
    several = len(rewards) > 1
    assert ("Held-out rewards, each by itself" in titles) == several
    assert [row[0] for row in reward_rows(evaluated)] == ([*rewards] if several else [])


@pytest.fixture
def console():
    return Console(file=StringIO(), width=200)


def test_the_warm_start_tells_the_time_left_in_ten_lines(console):
    with warm_start_bar(console, 100) as show:
        for step in range(1, 101):
            show(step, 2 - step / 100, None)
    first, *lines = console.file.getvalue().splitlines()
    assert first == "warm start: compiling ..."
    assert lines[0] == "warm start: step 10 of 100, loss 1.900 nats a token, 0 s left"
    assert (len(lines), lines[-1]) == (10, "warm start: step 100 of 100, loss 1.000 nats a token")
    assert "nan" not in "".join(lines)


@pytest.mark.parametrize("begun", [0, 5])
def test_compiling_is_told_with_its_seconds(console, begun):
    with display(console, 9, begun, lambda: 12.4) as show:
        for step in range(begun + (begun > 0), 9):
            show({"step": step, "reward": 0.5})
    lines = console.file.getvalue().splitlines()
    update = ["compiling the programs of the update ..."] if begun == 0 else []
    assert lines == [*update, "programs compiled so far, in 12 s"]
