"""Word problems in plain English: their arithmetic, their variety, their splits, their judge."""

import re
from itertools import islice

from ogrpo.rewards.extract import EXTRACTORS
from ogrpo.setup.prepare import LOOKS_FOR
from ogrpo.tasks.problems import calculate
from ogrpo.tasks.registry import read_task
from ogrpo.tasks.word_problems import DISTRACTED, STORIES, problems

STEP = re.compile(r"(\d+) ([+*/-]) (\d+) = (\d+)\.")
ROWS = list(islice(problems(0, "train"), 3000))


def test_every_worked_solution_is_right_and_its_last_number_is_the_answer():
    lengths = set()
    for question, solution, answer in ROWS:
        steps = [(int(a), o, int(b), int(c)) for a, o, b, c in STEP.findall(solution)]
        assert steps, solution
        assert all(calculate(a, o, b) == c for a, o, b, c in steps), solution
        assert steps[-1][-1] == answer >= 0, solution
        assert re.findall(r"\d+", solution)[-1] == str(answer)
        assert question[0].isupper() or question[0].isdigit()
        assert question.endswith("?")
        assert "  " not in question
        known = set(re.findall(r"\d+", question)) | {"1"}
        results = [str(c) for *_, c in steps]
        for index, (a, _, b, _) in enumerate(steps):
            assert {str(a), str(b)} <= known | set(results[:index]), (question, solution)
        lengths.add(len(steps))
    assert lengths >= {1, 2, 3}


def test_problems_vary_and_some_have_a_number_that_has_nothing_to_do_with_them():
    assert len({question for question, _, _ in ROWS}) == len(ROWS)
    assert len({re.sub(r"\d+", "N", question) for question, _, _ in ROWS}) > 2000
    assert len({answer for _, _, answer in ROWS}) > 50
    marks = ("degrees outside", "a neighbor,", "around the corner", "The street has", "cousins")
    shown = sum(any(mark in question for mark in marks) for question, _, _ in ROWS) / len(ROWS)
    assert DISTRACTED * 0.6 < shown < DISTRACTED * 1.2
    assert len(STORIES) == 10


def test_splits_share_no_question_and_do_not_depend_on_one_another():
    few, many = (read_task("word-problems", train=n) for n in (100, 400))
    validation = read_task("word-problems", train=100, split="validation")
    assert few.heldout == many.heldout
    assert few.train == many.train[:100] == validation.train
    parts = [{e.prompt for e in part} for part in (many.train, few.heldout, validation.heldout)]
    assert len(set.union(*parts)) == sum(map(len, parts))
    other = read_task("word-problems", train=100, seed=1)
    assert other.heldout != few.heldout


def test_the_last_number_of_a_completion_that_ends_is_judged():
    reward = read_task("word-problems", train=1).rewards[0].function
    texts = ["3 + 4 = 7. She has 7.", "She has 7 apples, not 8.", "7", "none", "$7.00"]
    ends = ["stop"] * 5
    verdicts = reward.judge_all(texts, ends, ["7"] * 5)
    assert verdicts == ["correct", "wrong", "correct", "unparsable", "correct"]
    assert reward.judge("She has 7.", "length", "7") == "truncated"


def test_every_way_to_find_an_answer_is_described():
    assert {*LOOKS_FOR} == {*EXTRACTORS}
