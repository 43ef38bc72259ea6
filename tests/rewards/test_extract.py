import pytest
from hypothesis import given
from hypothesis import strategies as st

from ogrpo.rewards.extract import boxed_answer, free_answer, marker_answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("7 + 5 = 12 #### 12", "12"),
        ("#### 1 #### 2", "2"),
        ("####2", "2"),
        ("#### $1,080.50.", "1,080.50"),
        ("#### -7", "-7"),
        ("#### \N{MINUS SIGN}7", "-7"),
        ("#### \N{EN DASH}7", "-7"),
        ("#### - 7", "-7"),
        ("#### \N{EN DASH} 7", "-7"),
        ("#### -$7", "-7"),
        ("#### -$ 7.50", "-7.50"),
        ("#### - $7", "-7"),
        ("#### $-7", "-7"),
        ("#### $ - 7", "-7"),
        (r"#### -\$7", "-7"),
        ("#### a loss of -$1,080", "-1,080"),
        ("#### = - .5", "-.5"),
        ("#### profit - 7", "7"),
        ("#### profit - $7", "7"),
        ("#### 5 - 7", None),
        ("#### 5\N{EN DASH}7", None),
        ("#### 5 -$7", None),
        ("#### -", None),
        ("#### .5", ".5"),
        ("#### 12 apples", "12"),
        ("12", None),
        ("####", None),
        ("#### none", None),
        ("#### 12 or 13", None),
        ("#### 12 12", None),
        ("#### 3 * 4", None),
        ("#### 24/2", None),
        ("#### 1,08", None),
        ("#### 9**9**9**9", None),
        ("#### \N{ARABIC-INDIC DIGIT THREE}", None),
        ("#### 12\ufffd3", None),
    ],
)
def test_exactly_one_number_after_the_last_marker(text, answer):
    assert marker_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{12}.", r"\boxed{12}"),
        (r"\boxed{1} then \boxed{\frac{1}{2}}", r"\boxed{\frac{1}{2}}"),
        (r"\boxed{\frac{1}{2}", None),
        (r"\boxed{1} then \boxed{2", None),
        ("12", None),
    ],
)
def test_the_last_box_if_it_is_closed(text, answer):
    assert boxed_answer(text) == answer


def test_the_free_answer_is_the_box_or_the_text():
    assert free_answer(r"It is 3, so \boxed{4}.") == r"\boxed{4}"
    assert free_answer(" It is 3. ") == "It is 3."
    assert free_answer("  ") is None


@given(st.text(alphabet="0123456789#.,- \\boxed{}$"))
def test_extractors_take_any_text(text):
    for extract in (boxed_answer, free_answer):
        answer = extract(text)
        assert answer is None or answer in text or answer.startswith("\\boxed{")
    number = marker_answer(text)
    assert number is None or number.lstrip("-") in text
