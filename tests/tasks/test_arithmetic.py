"""The generated problems, read and worked out again by means of their own, and rewards of lines."""

import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from operator import add, floordiv, mul, sub

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ogrpo.tasks.arithmetic import Teacher, WordProblem, demonstrate, generate, split, vocabulary
from ogrpo.tasks.problems import Problem, final_answer, line_rewards

FAULTLESS = Teacher(**dict.fromkeys(vars(Teacher()), 0.0))
COMPUTE = {"+": add, "-": sub, "*": mul, "/": floordiv}
# What each sentence does to the amount, as a reader of English understands it.
SENTENCES = {
    r"\w+ (finds|buys|has) (?P<n>\d+) more": COMPUTE["+"],
    r"\w+ loses (?P<n>\d+)": COMPUTE["-"],
    r"\w+ gives away (?P<n>\d+)": COMPUTE["-"],
    r"\w+ has (?P<n>\d+) fewer": COMPUTE["-"],
    r"\w+( then)? has (?P<n>\d+) times as many": COMPUTE["*"],
    r"\w+ keeps one of (?P<n>\d+) equal piles": COMPUTE["/"],
    r"\w+ has one of (?P<n>\d+) equal shares": COMPUTE["/"],
    r"That is (?P<n>\d+) more than \w+ has": COMPUTE["-"],
    r"That is (?P<n>\d+) fewer than \w+ has": COMPUTE["+"],
    r"That is (?P<n>\d+) times more than \w+ has": COMPUTE["/"],
    r"That is (?P<n>\d+) times less than \w+ has": COMPUTE["*"],
}


def read(question: str) -> int:
    """Follow a question sentence by sentence."""
    first, *sentences, last = question.split(" . ")
    assert re.fullmatch(r"How many \w+ does \w+ have( now)? \?", last)
    amount = int(re.fullmatch(r"\w+ (?:has|starts with) (\d+) \w+", first)[1])
    for sentence in sentences:
        matches = [(act, re.fullmatch(pattern, sentence)) for pattern, act in SENTENCES.items()]
        [(act, match)] = [(act, match) for act, match in matches if match]
        amount = act(amount, int(match["n"]))
    return amount


@given(st.integers(0, 2**32 - 1))
def test_the_question_agrees_with_the_answer_whose_chain_of_equations_is_true(seed):
    problems = generate(4, seed)
    for problem in problems:
        assert str(read(problem.question)) == final_answer(problem)
        chain, _, answer = problem.answer.partition(" #### ")
        value = str(problem.start)
        for equation in chain.split(" ; "):
            left, operator, right, equals, result = equation.split(" ")
            assert (left, equals) == (value, "=")
            assert COMPUTE[operator](int(left), int(right)) == int(result)
            assert operator != "/" or int(left) % int(right) == 0
            assert 1 <= int(result) <= 20
            value = result
        assert value == answer
    faultless = demonstrate(problems, seed, FAULTLESS)
    assert [p.answer for p in faultless] == [p.answer for p in problems]


MADE = split(8000, 2048, seed=0)
DRAWN = generate(20_000, 0)


def test_problems_kept_apart_are_those_that_come_beside_the_others():
    others = {problem.question for problem in DRAWN[:50]}
    assert generate(50, 0, apart_from=others) == DRAWN[50:100]


def equation(problem: WordProblem) -> tuple:
    return problem.start, *((step.operator, step.operand) for step in problem.steps)


def test_the_default_fits_its_sizes_and_shares_equations_and_no_prompt():
    assert len({p.question for part in MADE for p in part}) == 8000 + 2048
    first, second = ({equation(p) for p in part} for part in MADE)
    assert len(first & second) / len(second) > 0.9
    answers = [*MADE.train, *demonstrate(MADE.train, 0, Teacher())]
    words = vocabulary()
    assert max(len(p.question.split()) for part in MADE for p in part) == 32
    # and one token more for the end of sequence
    assert max(len(p.answer.split()) for p in answers) == 13
    assert {w for p in answers for w in f"{p.question} {p.answer}".split()} <= set(words)
    assert len(words) == len(set(words)) <= 176 - 3


def equations_one_by_one() -> Iterator[tuple]:
    def step(value, move):
        operator, n = move
        return 0 if operator == "/" and value % n else COMPUTE[operator](value, n)

    moves = [*itertools.product("+-", range(2, 6)), *itertools.product("*/", range(2, 4))]
    chains = [*itertools.product(moves, repeat=1), *itertools.product(moves, repeat=2)]
    for start, chain in itertools.product(range(2, 10), chains):
        if all(1 <= x <= 20 for x in itertools.accumulate(chain, step, initial=start)):
            yield start, *chain


def test_all_equations_and_ways_to_tell_a_step_are_drawn():
    assert {equation(problem) for problem in DRAWN} == {*equations_one_by_one()}
    sentences = {part for problem in DRAWN for part in problem.question.split(" . ")}
    for pattern in SENTENCES:
        assert any(re.fullmatch(pattern, sentence) for sentence in sentences), pattern


SHARES = st.floats(0, 1)


@given(st.integers(0, 2**32 - 1), st.builds(Teacher, wrong_operator=SHARES, wrong_operand=SHARES))
def test_a_careless_answer_keeps_the_form_and_the_range(seed, teacher):
    for problem in demonstrate(generate(4, seed), seed, teacher):
        equation = r"\d{1,2} [-+*/] [1-9]\d? = \d{1,2}"
        assert re.fullmatch(rf"{equation}( ; {equation})* #### \d{{1,2}}", problem.answer)


ONE_STEP = [p for p in DRAWN if len(p.steps) == 1]


def single_steps(*, inconsistent: bool) -> list[WordProblem]:
    return [p for p in ONE_STEP if p.steps[0].inconsistent == inconsistent]


@pytest.mark.parametrize(
    ("knob", "operator", "reverse"),
    [
        ("misread_add", "+", "-"),
        ("misread_subtract", "-", "+"),
        ("misread_multiply", "*", "/"),
        ("misread_divide", "/", "*"),
    ],
)
def test_each_misconception_reverses_its_own_operator_and_no_other(knob, operator, reverse):
    teacher = replace(FAULTLESS, **{knob: 1.0})
    for told_inconsistently in (True, False):
        problems = single_steps(inconsistent=told_inconsistently)
        written = demonstrate(problems, 0, teacher)
        for problem, answer in zip(problems, written, strict=True):
            true = problem.steps[0].operator
            misled = told_inconsistently and true == operator
            assert answer.answer.split()[1] == (reverse if misled else true)


def test_slips_come_as_often_as_asked():
    problems = single_steps(inconsistent=False)
    teacher = replace(FAULTLESS, wrong_operator=0.2, wrong_operand=0.3, result_slip=0.1)
    operators = operands = slips = 0
    for problem, written in zip(problems, demonstrate(problems, 1, teacher), strict=True):
        left, operator, right, _, result = written.answer.split()[:5]
        step = problem.steps[0]
        operators += operator != step.operator
        operands += int(right) != step.operand
        slips += int(result) != COMPUTE[operator](int(left), int(right))
        assert operator == step.operator or int(right) == step.operand
    n = len(problems)
    for hits, p in ((operators, 0.2), (operands, 0.8 * 0.3)):
        assert abs(hits / n - p) < 5 * math.sqrt(p * (1 - p) / n)
    # a wrong operator can leave the range of results, which is cut: not more than a few
    assert abs(slips / n - 0.1) < 0.05


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
    for problem in generate(200, seed=1):
        assert sum(step.reward for step in line_rewards(problem.answer, problem.answer)) == 1


@pytest.mark.parametrize("solution", ["#### 4", "four #### 4", "2 * 2 = 4 ; so #### 4", "4"])
def test_a_solution_without_lines_is_refused(solution):
    with pytest.raises(ValueError, match="rewards of steps need them"):
        line_rewards(GOLD, solution)
