"""A run says at once which judge decides and that there is nothing to learn, and ends if asked."""

from contextlib import nullcontext
from dataclasses import replace
from unittest.mock import Mock

import pytest

from ogrpo.report.guards import Guards
from ogrpo.run.main import GuardError, guard
from ogrpo.setup.presets import main_study
from tests.loop.walk import SUMS
from tests.report.test_guards import evaluated
from tests.run.small_run import CONFIG, go, left

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


def test_a_file_without_rewards_says_what_it_looks_for_and_strict_ends_it(tmp_path):
    data = replace(CONFIG.data, train=8000)
    changes = {"task": SUMS, "rewards": (), "data": data, "strict": True}
    with pytest.raises(GuardError, match=r"are cut off before they ended") as caught:
        go(tmp_path / "run", **changes)
    notes = "".join(caught.value.__notes__)
    assert "the state after step 0 is saved; go on with" in notes
    shown = go(tmp_path / "run", **{**changes, "strict": False}, resume=True)
    first = shown.splitlines()
    assert any("the one number after the last ####" in line for line in first[:4])
    page = (tmp_path / "run" / "report.html").read_text()
    assert 'class="warning">step 0: 100% of the held-out answers are cut off' in page
    assert "source of ogrpo" in page
    assert "SHA-256 of the training problems" in page
    assert "from the command to this page" in page
    assert left(tmp_path / "run")[0][0]["pass@1/sampled"] == 0
