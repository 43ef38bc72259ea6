"""The number that a worked answer ends in, and its lines against those of another."""

import pytest

from ogrpo.tasks import arithmetic
from ogrpo.tasks.problems import Problem, final_answer, line_rewards

GOLD = "7 + 5 = 12 ; 12 / 3 = 4 #### 4"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("first #### 3, no:\n#### 1,080", "1080"),
        ("#### \N{MINUS SIGN}7", "-7"),
        ("#### -$7", "-7"),
        ("#### $109,200,000.", "109200000"),
        ("####  2.50 ", "2.50"),
    ],
)
def test_the_final_answer_is_written_plainly(answer, expected):
    assert final_answer(Problem("?", answer)) == expected


@pytest.mark.parametrize("answer", ["the answer is 12", "12 ####", "12 #### ."])
def test_a_missing_answer_is_an_error_that_names_its_source_or_question(answer):
    with pytest.raises(ValueError, match=r"train\.jsonl:3: field 'answer' must end in '####"):
        final_answer(Problem("?", answer, source="train.jsonl:3"))
    with pytest.raises(ValueError, match="question 'How many"):
        final_answer(Problem("How many ?", answer))
    assert Problem("q", answer, source="x:1") == Problem("q", answer, source="y:2")


@pytest.mark.parametrize(
    ("text", "earned"),
    [
        (GOLD, [0.5, 0.5]),
        ("5 + 7 = 12 ; 12 / 3 = 4 #### 9", [0.5, 0.5]),  # the answer is the completion's reward
        ("7 + 6 = 13 ; 12 / 3 = 4 #### 4", [0.0, 0.5]),
        ("7 + 5 = 12 ; 12 / 3 = 5", [0.5]),  # an unended line is no step
        ("7 + 5 = 12 ; 9 / 2 = 4 #### 4", [0.5, 0.0]),  # 9 / 2 is not 4
        (f"7 + 5 = 12 ; 12 / 3 = {'4' * 5_000} #### 4", [0.5, 0.0]),  # too long to be a number
        ("12 ; 7 + 5 = 12 ; 7 + 5 = 12 ;" + GOLD, [0.0] * 5),  # right lines at wrong places
        (" ; ".join([GOLD[:10]] * 5) + " ;", [0.5, 0.0, 0.0, 0.0, 0.0]),  # no gain in many
    ],
)
def test_a_line_earns_its_share_where_it_is_right(text, earned):
    steps = line_rewards(text, GOLD)
    assert [step.reward for step in steps] == earned
    assert all(text[step.end - 1] in ";#" for step in steps)


def test_worked_solutions_earn_everything():
    for problem in arithmetic.generate(200, seed=1):
        assert sum(step.reward for step in line_rewards(problem.answer, problem.answer)) == 1


@pytest.mark.parametrize("solution", ["#### 4", "four #### 4", "2 * 2 = 4 ; so #### 4", "4"])
def test_a_solution_without_lines_is_refused(solution):
    with pytest.raises(ValueError, match="rewards of steps need them"):
        line_rewards(GOLD, solution)
