import pytest

from ogrpo.tasks.problems import Problem, final_answer


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("7 + 5 = 12 #### 12", "12"),
        ("first #### 3, no:\n#### 1,080", "1080"),
        ("#### -7", "-7"),
        ("#### \N{MINUS SIGN}7", "-7"),
        ("#### \N{EN DASH}7", "-7"),
        ("#### - 7", "-7"),
        ("#### -$7", "-7"),
        ("#### $109,200,000.", "109200000"),
        ("####  2.50 ", "2.50"),
        ("#### 1\N{NO-BREAK SPACE}000", "1000"),
    ],
)
def test_the_final_answer_is_written_plainly(answer, expected):
    assert final_answer(Problem("?", answer)) == expected


@pytest.mark.parametrize("answer", ["the answer is 12", "12 ####", "12 #### ."])
def test_a_missing_answer_is_an_error_that_names_its_source(answer):
    with pytest.raises(ValueError, match=r"train\.jsonl:3: field 'answer' must end in '####"):
        final_answer(Problem("?", answer, source="train.jsonl:3"))


def test_a_missing_answer_without_a_source_is_named_by_its_question():
    with pytest.raises(ValueError, match="question 'How many"):
        final_answer(Problem("How many ?", "12"))


def test_the_source_is_no_part_of_the_problem():
    assert Problem("q", "a", source="x:1") == Problem("q", "a", source="y:2")
