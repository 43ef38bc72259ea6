"""Demonstrations that are longer than completions may be are left out with a count, or refused."""

import io

import numpy as np
import pytest
from rich.console import Console

from ogrpo.config.train import Rollout
from ogrpo.setup.imitation import demonstration, fitting_lessons
from ogrpo.setup.presets import main_study

CONFIG = main_study(rollout=Rollout(max_tokens=4))
SHORT, LONG = np.arange(3, dtype=np.int32), np.arange(9, dtype=np.int32)


def lessons(*answers):
    return [demonstration(SHORT, [answer, SHORT]) for answer in answers]


@pytest.mark.parametrize(("answers", "lost"), [((SHORT,), 0), ((SHORT, LONG, LONG), 2)])
def test_long_demonstrations_are_left_out_and_counted(answers, lost):
    shown = io.StringIO()
    console = Console(file=shown, width=200)
    assert len(fitting_lessons(CONFIG, lessons(*answers), console)) == len(answers) - lost
    told = shown.getvalue()
    assert (f"{lost} demonstrations longer than 4 tokens, not imitated" in told) == bool(lost)


def test_without_one_that_fits_the_remedies_are_named():
    with pytest.raises(
        ValueError, match=r"at most rollout\.max-tokens = 4 .* larger --rollout\.max"
    ):
        fitting_lessons(CONFIG, lessons(LONG), Console(quiet=True))
