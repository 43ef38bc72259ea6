"""Answers as they stand in completions, and what is put aside when they are compared as texts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ogrpo.rewards import extract as extractors
from ogrpo.rewards.extract import boxed_answer, choice_answer, free_answer, marker_answer
from ogrpo.rewards.text import is_text, same_text

MARKED = {
    "7 + 5 = 12 #### 12": "12",
    "#### 1 #### 2": "2",
    "#### $1,080.50.": "1,080.50",
    "#### -7": "-7",
    "#### \N{MINUS SIGN}7": "-7",
    "#### $ - 7": "-7",
    "#### x = - 7": "-7",
    "#### a loss of -$1,080": "-1,080",
    "#### 5 - 7": None,
    "#### .5": ".5",
    "#### 9**9**9**9": None,
    "#### 10³": None,
    "#### 2½": None,
    "#### sqrt(2)": None,
    "#### 18 m²": "18",
}
BOXED = {
    r"so \boxed{12}.": r"\boxed{12}",
    r"\boxed{\frac{1}{2}": None,
    r"\boxed{1} then \boxed{2": None,
    "12": None,
    # With nothing but a separator between them, boxes are one answer.
    r"\boxed{1}\boxed{2}": r"\boxed{1, 2}",
    r"\boxed{1}, \boxed{2}; \boxed{3}": r"\boxed{1, 2, 3}",
    r"\(\boxed{1}\) and \(\boxed{-2}\).": r"\boxed{1, -2}",
    r"\boxed{1} papers and \boxed{2} bins": r"\boxed{1, 2}",
    r"$x_1 = \boxed{1}$ or $x_2 = \boxed{-2}$": r"\boxed{1, -2}",
    r"first \boxed{7}. Hence \boxed{1.} or \boxed{2.}": r"\boxed{1, 2}",
    r"so \boxed{1}, no, \boxed{2}": r"\boxed{2}",
    r"\boxed{1}. \boxed{2}": r"\boxed{2}",
    r"\boxed{12} cm and the perimeter is \boxed{14}": r"\boxed{14}",
    r"\boxed{1}" + "," * 80 + r"\boxed{2}": r"\boxed{2}",
    r"\boxed{004}, again: \boxed{004} and \boxed{004}": r"\boxed{004}",
    r"\boxed{}, \boxed{2}": r"\boxed{2}",
    r"\boxed{3}, no: \boxed {4}": r"\boxed{4}",
    r"\boxed{1, \boxed{2}": r"\boxed{2}",
}
CHOICES = {
    "**Answer: C**": "C",
    "Answer: A. No, the answer is D": "D",
    r"The answer is A, so \boxed{D}": r"\boxed{D}",
    "The answer is Berlin.": None,
    "The answer is A or B.": None,
    "The answer is option A or option B.": None,
    "So the answer is $A$ or $B$": None,
    r"The correct option is \textbf{(B)}": "B",
    r"answer is \(B\). answer is `C`": "C",
    "The answer is B. That is the right choice I made.": "B",
    "The answer is $C(10,3)$": None,
    "The answer is C, and I am sure. Answer: (A), not B": "A",
    "The answer is B, I think.": "B",
    "The answer is a dog.": None,
    "B": None,
}
FREE = {r"It is 3, so \boxed{4}.": r"\boxed{4}", " It is 3. ": "It is 3.", "  ": None}


@pytest.mark.parametrize(
    ("extract", "cases"),
    [(marker_answer, MARKED), (boxed_answer, BOXED), (choice_answer, CHOICES), (free_answer, FREE)],
)
def test_the_answer_is_taken_where_it_stands_alone(extract, cases):
    assert {text: extract(text) for text in cases} == cases


def test_hostile_completions_cost_no_more_than_their_length():
    """Without a bound of their own, as they are read in the trainer's threads."""
    assert choice_answer(f"The answer{' ' * 3_000}is{' ' * 3_000}:{' ' * 3_000}b") is None
    text = r"\boxed{1}, \boxed{2}, " * 20_000
    assert extractors.last_boxes(text) == r"\boxed{1, 2}"
    assert extractors.last_boxes("\\boxed{" * 100_000) is None


@pytest.mark.parametrize("extract", [boxed_answer, free_answer, choice_answer, marker_answer])
def test_no_answer_is_taken_from_a_thought(extract):
    said = "#### 19" if extract is marker_answer else r"\boxed{19}"
    other = said.replace("19", "18")
    assert extract(f"<think>{other}</think>{said}") == extract(said)
    assert extract(f"{other}</think> {said} <think> {other}") == extract(said)
    for silent in (f"<think>{other}</think>", f"<think>{other}", f"{other} </think> "):
        assert extract(silent) is None


TEXTS = [
    r"\text{Evelyn}", r"\text{June 20}", r"\text{(B)}", r"\textbf{(C)}", r"\mathrm{even}", "(B)",
    "Tuesday", "no solution", "all real numbers", "Yes", "12:30", r"\text{6:00 p.m.}", "2516_8",
    "AB4_{12}", "Saint-Denis", "José",
]  # fmt: skip
MATHEMATICS = [
    "B", "x", "xy", "p - q", "x and y", "infinity", r"\infty", r"12\text{ cm}", r"\text{12 cm}",
    r"\text{-5}", "(1, 2)", "(x)(y)", "2:3", "1:2:3", r"\sin x", "x_1", "5 and 7", "",
]  # fmt: skip


def test_words_choices_times_and_numbers_with_a_base_are_texts_and_all_else_is_mathematics():
    assert [gold for gold in TEXTS if not (is_text(gold) and same_text(gold, gold))] == []
    assert [gold for gold in MATHEMATICS if is_text(gold)] == []


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (r"\text{ Evelyn }", "evelyn.", True),
        ("$B$", r"\textbf{(b)}", True),
        ("6:00", r"6\!:\!00", False),
        ("listen", "silent", False),
        ("Saint\N{EN DASH}Denis", "Saint-Denis", True),
    ],
)
def test_texts_are_compared_but_for_case_and_wrapping(one, other, same):
    assert same_text(one, other) is same
    assert same_text(other, one) is same


PIECES = [*"abx019#.,:- _(){}\\$", "####", "\\boxed{", "\\text{", "<think>", "</think>"]


@given(st.lists(st.sampled_from(PIECES), max_size=40).map("".join))
def test_any_text_is_taken(text):
    for extract in (boxed_answer, free_answer):
        answer = extract(text)
        assert answer is None or answer in text or answer.startswith("\\boxed{")
    number = marker_answer(text)
    assert number is None or number.lstrip("-") in text
    assert is_text(text) in (True, False)
    assert same_text(text, text) in (True, False)
