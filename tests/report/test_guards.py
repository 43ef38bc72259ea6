"""Guard rails speak of what they are for, once, and of nothing else, and end a run if asked."""

import re
from contextlib import nullcontext
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest

from ogrpo.report.guards import NO_SUCCESS, WINDOW, Guards
from ogrpo.run import ending
from ogrpo.run.main import GuardError, guard
from ogrpo.setup.presets import main_study
from tests.loop.walk import SUMS
from tests.run.small_run import CONFIG, go, left


def evaluated(step, value, half=0.05, key="pass@1/sampled", **more: Any):
    bounds = {f"{key}/low": value - half, f"{key}/high": value + half}
    by = "math" if key.startswith("pass") else None
    return {"step": step, key: value, **bounds, "heldout/by": by, **more}


def trained(count, **figures):
    return [{"step": n, "completions": 8 * n, **figures} for n in range(1, count + 1)]


def scored(*values, **how):
    return [evaluated(n, value, **how) for n, value in enumerate(values)]


def at_one_and_eight(*shares):
    """Evaluations with Pass@1 and Pass@8."""
    pairs = enumerate(shares)
    return [evaluated(n, a) | evaluated(n, b, key="pass@8/sampled") for n, (a, b) in pairs]


QUIET = {"reward": 0.4, "reward/math": 0.4, "kl/pi_mu": 0.02, "ratio/tail": 1.2}
START = evaluated(0, 0.3)
UNBOUNDED = [
    {"step": n, "heldout/reward/sampled": 2.0, "heldout/equal": float(n > 0)} for n in range(3)
]
FAILING = {**QUIET, "reward/math": 0.0}
TABLE = [
    ("a sound run", [START, *trained(50, **QUIET), evaluated(50, 0.7)], []),
    ("noise", scored(0.3, 0.7, 0.61), []),
    ("a fall", scored(0.3, 0.7, 0.55), ["fall"]),
    ("one fall is told once, another again", scored(0.3, 0.7, 0.5, 0.4, 0.7, 0.2), ["fall"] * 2),
    ("mean rewards fall, too", scored(3.0, 2.0, key="heldout/reward/sampled"), ["fall"]),
    ("Pass@8 falls while Pass@1 rises", at_one_and_eight((0.3, 0.9), (0.5, 0.75)), []),
    ("Pass@8 falls, and Pass@1 stays", at_one_and_eight((0.3, 0.9), (0.33, 0.75)), ["fall"]),
    ("unparsable", [evaluated(0, 0.0) | {"heldout/unparsable": 1.0}], ["start"]),
    ("cut off", [evaluated(0, 0.0) | {"heldout/truncated": 0.97}], ["start"]),
    ("unjudged", [evaluated(0, 0.0) | {"heldout/unjudged": 0.96}], ["start"]),
    ("of one reward", [evaluated(0, 0.0) | {"heldout/equal": 0.99}], ["start"]),
    ("nearly", [evaluated(0, 0.2) | {"heldout/equal": 0.94, "heldout/unparsable": 0.9}], []),
    ("later", [evaluated(0, 0.9), evaluated(9, 0.99) | {"heldout/equal": 0.99}], []),
    ("of one reward, but not at the start, and without bounds", UNBOUNDED, []),
    ("no success", [START, *trained(NO_SUCCESS + 5, **FAILING)], ["no success"]),
    ("too few groups", trained(20, **{"reuse/starved": True, "reuse/draws": 0}), ["no success"]),
    ("nothing collected", [START, *trained(NO_SUCCESS + 5, **FAILING | {"reward": None})], []),
    # The reward that decides judges held-out answers alone, or there is none.
    ("equal rewards", [START, *trained(NO_SUCCESS, reward=0.0, zero_variance=1.0)], ["no success"]),
    ("no reward decides", trained(NO_SUCCESS, reward=0.5, zero_variance=1.0), ["no success"]),
    ("an infinite tail", trained(WINDOW, **{**QUIET, "nonfinite": ["ratio/tail"]}), ["signal"]),
    ("a high tail", trained(WINDOW + 5, **{**QUIET, "ratio/tail": 4.0}), ["signal"]),
    ("a spike", [*trained(1, **{"kl/pi_mu": 5.0}), *trained(20, **QUIET)], []),
    ("a cut sampler, once", trained(3, **{**QUIET, "ratio/bias": -0.1}), ["signal"]),
    ("a high divergence", trained(WINDOW, **{"kl/pi_mu": 2.5}), ["signal"]),
]


@pytest.mark.parametrize(("records", "kinds"), [x[1:] for x in TABLE], ids=[x[0] for x in TABLE])
def test_a_guard_rail_speaks_of_what_it_is_for(records, kinds):
    guards = Guards(records).messages
    assert [each.kind for each in guards] == kinds
    assert all("--" in each.text or "Mend" in each.text for each in guards)  # each names a remedy


HOPELESS = evaluated(0, 0.0) | {"heldout/unparsable": 1.0}
FALL = [evaluated(0, 0.3), evaluated(1, 0.7), evaluated(2, 0.5)]
ANSWERS = [("18 apples", {}), ("\x1b[2J", {}), ("third", {})]


@pytest.mark.parametrize(
    ("records", "option", "said"),
    [
        ([HOPELESS], "strict", "100% of the held-out answers are unparsable"),
        (FALL, "stop_when_worse", "fell by more than its interval"),
    ],
)
def test_a_guard_rail_warns_and_ends_a_run_that_asks_for_it(records, option, said):
    for enabled in (False, True):
        session, shown = Mock(config=replace(main_study(), **{option: enabled})), []
        session.say = lambda text, style, shown=shown: shown.append(text)
        reason = f"--{option.replace('_', '-')} ends the run.*{said}"
        with pytest.raises(GuardError, match=reason) if enabled else nullcontext():
            guard(session, Guards(records[:-1]), records[-1], ANSWERS)
        assert said in shown[0]
        assert ("18 apples" in shown[0]) == (option == "strict")
        assert "third" not in shown[0]
        assert "\x1b" not in shown[0]


def test_a_file_without_rewards_says_what_it_looks_for_and_strict_ends_it(tmp_path, monkeypatch):
    data = replace(CONFIG.data, train=8000)
    changes = {"task": SUMS, "rewards": (), "data": data, "strict": True}
    with pytest.raises(GuardError, match=r"are cut off before they ended") as caught:
        go(tmp_path / "run", **changes)
    notes = "".join(caught.value.__notes__)
    assert "the state after step 0 is saved; go on with" in notes
    answers = [("\x1b[2J 18\n\n" * 99, {})] * CONFIG.evaluation.prompts
    monkeypatch.setattr(ending, "greedy_answers", lambda *_, **__: answers)  # those at the end
    shown = go(tmp_path / "run", **{**changes, "strict": False}, resume=True)
    first = shown.splitlines()
    assert any("the one number after the last ####" in line for line in first[:4])
    *_, last = re.findall(r"question: (.+)\nbefore, wrong: .*\nafter, wrong: (.*)\n", shown)
    assert last[1] == (r"\x1b[2J 18 " * 99)[:143] + "..."
    page = (tmp_path / "run" / "report.html").read_text()
    assert f"<td>{last[0]}<td" in page
    assert 'class="warning">step 0: 100% of the held-out answers are cut off' in page
    assert "source of ogrpo" in page
    assert "SHA-256 of the training problems" in page
    assert "from the command to this page" in page
    assert left(tmp_path / "run")[0][0]["pass@1/sampled"] == 0
