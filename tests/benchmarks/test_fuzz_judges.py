from fractions import Fraction
from random import Random

import pytest

from benchmarks.fuzz_judges import (
    KINDS,
    Question,
    fuzz,
    main,
    near,
    number,
    plain,
    questions,
    written,
)


@pytest.mark.slow
def test_no_random_answer_is_accepted_that_is_wrong_nor_refused_that_is_right():
    found = fuzz(1000, seed=0)
    assert found.accepted == []
    assert found.refused == []
    assert sum(found.outcomes.values()) == 1000
    assert min(found.outcomes[name] for name in ("correct", "wrong", "unparsable")) > 150


def test_the_questions_are_those_of_the_seed_and_of_every_kind():
    assert [*questions(50, 3)] == [*questions(50, 3)] != [*questions(50, 4)]
    assert all(isinstance(kind(Random(0)), Question) for kind in KINDS)
    right = [one.right for one in questions(1000, 5)]
    assert 250 < sum(right) < 500


def test_numbers_are_written_as_what_they_are():
    rng = Random(1)
    for _ in range(200):
        value = number(rng)
        text = written(value, rng).replace("\N{MINUS SIGN}", "-").replace("\N{EN DASH}", "-")
        text = text.replace("\\dfrac", "").replace("\\frac", "").replace("}{", "/").strip("{}")
        assert Fraction(text.replace(" ", "").replace("{", "").replace("}", "")) == value
        assert near(value, rng) != value
    assert plain(Fraction(12345, 2), commas=True) == "6,172.5"


def test_a_verdict_that_is_wrong_is_shown(monkeypatch, capsys):
    monkeypatch.setattr(
        "benchmarks.fuzz_judges.questions",
        lambda count, seed: [Question("marker", "#### 2", "2", False)] * count,
    )
    main(["--judgements", "2"])
    shown = capsys.readouterr().out
    assert shown.count("wrongly accepted: Question(judge='marker', text='#### 2'") == 2
    assert "2 judgements with seed 0: 2 correct; 2 wrongly accepted, 0 wrongly refused" in shown
