import pytest

from ogrpo.rewards.exact_match import ExactMatch
from ogrpo.rewards.extract import choice_answer
from ogrpo.rewards.judge import RewardCounts


@pytest.mark.parametrize(
    ("text", "finish_reason", "gold", "outcome"),
    [
        (r"so \boxed{B}", "stop", "B", "correct"),
        (r"so \boxed{\text{(b)}}.", "stop", "B", "correct"),
        (r"so \boxed{New  York.}", "stop", "new york", "correct"),
        (r"so \boxed{C}", "stop", "B", "wrong"),
        (r"so \boxed{B or C}", "stop", "B", "wrong"),
        (r"so \boxed{}", "stop", "B", "unparsable"),
        ("so B", "stop", "B", "unparsable"),
        (r"\boxed{" + "B" * 5000 + "}", "stop", "B", "unparsable"),
        (r"so \boxed{B}", "length", "B", "truncated"),
    ],
)
def test_the_box_is_compared_as_text(text, finish_reason, gold, outcome):
    reward = ExactMatch()
    assert reward.judge(text, finish_reason, gold) == outcome
    assert reward.score(text, finish_reason, gold) == float(outcome == "correct")
    assert reward.counts == RewardCounts(**{outcome: 1})


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("The answer is (B).", "B"),
        ("**Answer: C**", "C"),
        ("Answer: A. No, the answer is D", "D"),
        (r"The answer is A, so \boxed{D}", r"\boxed{D}"),
        ("The answer is Berlin.", None),
        ("The answer is a dog.", None),
        ("B", None),
    ],
)
def test_a_choice_is_the_box_or_the_letter_after_answer(text, letter):
    assert choice_answer(text) == letter


def test_golds_without_letters_are_refused():
    with pytest.raises(ValueError, match=r"a:2: '\.' has no letters.*\na:3: 5 is no text"):
        ExactMatch().check_golds(["B", ".", 5], ["a:1", "a:2", "a:3"])
    with pytest.raises(ValueError, match="5 is no text"):
        ExactMatch().judge(r"\boxed{5}", "stop", 5)
