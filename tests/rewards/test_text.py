import pytest
from hypothesis import given
from hypothesis import strategies as st

from ogrpo.rewards.text import ascii_minus, is_text, same_text, unboxed

TEXTS = [
    r"\text{Evelyn}", r"\text{June 20}", r"\text{(B)}", r"\textbf{(C)}", r"\mathrm{even}", "(B)",
    "Tuesday", "no solution", "all real numbers", "Yes", "12:30", r"\text{6:00 p.m.}", "2516_8",
    "AB4_{12}", "Saint-Denis", "José",
]  # fmt: skip
MATHEMATICS = [
    "B", "x", "xy", "p - q", "x and y", "infinity", r"\infty", r"12\text{ cm}", r"\text{12 cm}",
    r"\text{-5}", "(1, 2)", "(x)(y)", "2:3", "1:2:3", r"\sin x", "x_1", "5 and 7", "", r"\text{}",
]  # fmt: skip


@pytest.mark.parametrize("gold", TEXTS)
def test_words_choices_times_and_numbers_with_a_base_are_texts(gold):
    assert is_text(gold)
    assert same_text(gold, gold)


@pytest.mark.parametrize("gold", MATHEMATICS)
def test_anything_else_is_mathematics(gold):
    assert not is_text(gold) or gold == r"\text{}"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (r"\text{ Evelyn }", "evelyn.", True),
        (r"\text{no}\ \text{solution}", "No  solution", True),
        ("$B$", r"\textbf{(b)}", True),
        ("6:00", r"6\!:\!00", False),
        ("listen", "silent", False),
        ("(A)", "(B)", False),
        ("Saint\N{EN DASH}Denis", "Saint-Denis", True),
        ("", "", False),
    ],
)
def test_texts_are_compared_but_for_case_and_wrapping(one, other, same):
    assert same_text(one, other) is same
    assert same_text(other, one) is same


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        (r"\boxed{12}", "12"),
        (r"\boxed{ 12. }", "12"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        ("12.", "12."),
        (r"\boxed{}", ""),
    ],
)
def test_what_is_in_a_box(text, inside):
    assert unboxed(text) == inside


def test_every_dash_is_a_minus():
    assert (
        ascii_minus("-\N{MINUS SIGN}\N{EN DASH}\N{FIGURE DASH}\N{NON-BREAKING HYPHEN}") == "-----"
    )


@given(st.text(alphabet="ab1(){}\\text$_: .,-", max_size=40))
def test_any_text_is_judged(text):
    assert is_text(text) in (True, False)
    assert same_text(text, text) in (True, False)
