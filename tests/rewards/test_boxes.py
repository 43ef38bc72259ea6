import pytest

from ogrpo.rewards.boxes import last_boxes
from ogrpo.rewards.extract import boxed_answer, choice_answer, free_answer, marker_answer
from ogrpo.rewards.math import MathReward

ONE_ANSWER = [
    (r"\boxed{1}\boxed{2}", "1, 2"),
    (r"\boxed{1}, \boxed{2}; \boxed{3}", "1, 2, 3"),
    (r"\(\boxed{1}\) and \(\boxed{-2}\).", "1, -2"),
    (r"\[\boxed{(98, 2)} \quad \text{and} \quad \boxed{(99, 503)}\]", "(98, 2), (99, 503)"),
    (r"\boxed{1} papers and \boxed{2} bins", "1, 2"),
    (r"\boxed{3} \text{ for part (a) and } \boxed{4}", "3, 4"),
    (r"$x_1 = \boxed{1}$ or $x_2 = \boxed{-2}$", "1, -2"),
    (r"\boxed{1}, \boxed{1} and \boxed{2}", "1, 2"),
    (r"first \boxed{7}. Hence \boxed{1.} or \boxed{2.}", "1, 2"),
    (r"\\boxed{1}, \\boxed{2}", "1, 2"),
]
THE_LAST = [
    (r"so \boxed{1}, no, \boxed{2}", "2"),
    (r"\boxed{1}. \boxed{2}", "2"),
    (r"\boxed{1} or rather \boxed{2}", "2"),
    (r"\boxed{12} cm and the perimeter is \boxed{14}", "14"),
    (r"\boxed{1} = \boxed{2}", "2"),
    (r"\boxed{1}" + "," * 80 + r"\boxed{2}", "2"),
    (r"\boxed{004}, again: \boxed{004} and \boxed{004}", "004"),
    (r"\boxed{}, \boxed{2}", "2"),
    (r"\boxed{1, \boxed{2}", "2"),
    (r"\boxed{\boxed{2}}", "2"),
]


@pytest.fixture(scope="module")
def reward():
    reward = MathReward(boxed_answer, processes=1)
    yield reward
    reward.close()


@pytest.mark.parametrize(("text", "content"), ONE_ANSWER + THE_LAST)
def test_boxes_with_nothing_but_a_separator_between_them_are_one_answer(text, content):
    assert last_boxes(text) == f"\\boxed{{{content}}}"


def test_many_boxes_cost_no_more_than_their_length():
    text = r"\boxed{1}, \boxed{2}, " * 20_000
    assert last_boxes(text) == r"\boxed{1, 2}"
    assert last_boxes("\\boxed{" * 100_000) is None


@pytest.mark.parametrize("between", [", ", " or ", " and ", " ", r" \quad\text{or}\quad "])
@pytest.mark.parametrize("gold", ["3", "4", "x", r"\frac{1}{2}"])
def test_whoever_gives_two_answers_has_given_neither(reward, between, gold):
    other = r"\boxed{7}"
    texts = [f"\\boxed{{{gold}}}{between}{other}", f"{other}{between}\\boxed{{{gold}}}"]
    assert reward.judge_all(texts, ["stop"] * 2, [gold] * 2) == ["wrong"] * 2


@pytest.mark.parametrize("extract", [boxed_answer, free_answer, choice_answer, marker_answer])
def test_no_answer_is_taken_from_a_thought(extract):
    said = "#### 19" if extract is marker_answer else r"\boxed{19}"
    other = said.replace("19", "18")
    assert extract(f"<think>{other}</think>{said}") == extract(said)
    assert extract(f"{other}</think> {said} <think> {other}") == extract(said)
    for silent in (f"<think>{other}</think>", f"<think>{other}", f"{other} </think> "):
        assert extract(silent) is None
