"""The examples in the docstrings are true."""

import doctest
import importlib

import pytest


@pytest.mark.parametrize(
    "name",
    [
        "ogrpo.tasks.competition_math",
        "ogrpo.tasks.example",
        "ogrpo.tasks.problems",
        "ogrpo.rewards.bounded",
        "ogrpo.rewards.extract",
        "ogrpo.rewards.judge",
        "ogrpo.rewards.reward",
        "ogrpo.rewards.scores",
        "ogrpo.rewards.quantities",
        "ogrpo.rewards.math",
        "ogrpo.rewards.text",
    ],
)
def test_examples(name):
    results = doctest.testmod(importlib.import_module(name))
    assert results.attempted > 0
    assert results.failed == 0
