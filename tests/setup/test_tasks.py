"""Training, validation and test problems: no prompt is in two sets."""

from contextlib import closing
from dataclasses import replace
from itertools import combinations

import pytest

from ogrpo.config.train import Data, Evaluation, WarmStart
from ogrpo.data.tokenizer import word_level
from ogrpo.setup.find_task import MOST_HELDOUT, find_task
from ogrpo.setup.prepare import prepare
from ogrpo.setup.presets import main_study
from ogrpo.tasks import arithmetic
from tests.tasks.test_official import write

SMALL = main_study(data=Data(train=300), warm_start=WarmStart(problems=200, demonstrations=1))


def held_out(config, split, prompts=MOST_HELDOUT):
    return replace(config, evaluation=Evaluation(split=split, prompts=prompts))


def questions(examples):
    return [example.prompt for example in examples]


def shown(prepared):
    """Returns the careless teacher's demonstrations as text."""
    tokenizer = word_level(arithmetic.vocabulary())
    return [tokenizer.decode(group.prompt_ids) for group in prepared.demos.groups(tokenizer)]


def sets_of(config):
    """Every set of prompts, held-out ones as large as they can be."""
    tuning, reported = (find_task(held_out(config, s)) for s in ("validation", "test"))
    assert questions(tuning.task.train) == questions(reported.task.train)
    assert tuning.demos.key == reported.demos.key
    parts = (tuning.task.train, tuning.task.heldout, reported.task.heldout)
    train, validation, test = (questions(part) for part in parts)
    return [train, shown(tuning), validation, test]


def heldout(config):
    with closing(prepare(config)) as prepared:
        assert len(prepared.heldout) == len(prepared.prompts.heldout)
        return questions(prepared.heldout)


@pytest.mark.parametrize(
    "config", [pytest.param(main_study(), marks=pytest.mark.slow), SMALL], ids=["default", "small"]
)
def test_generated_sets_share_no_prompt_and_repeat_none(config):
    sets = sets_of(config)
    sizes = [config.data.train, config.warm_start.problems, MOST_HELDOUT, MOST_HELDOUT]
    assert [len(part) for part in sets] == sizes
    assert [len(set(part)) for part in sets] == sizes
    assert not any(set(a) & set(b) for a, b in combinations(sets, 2))


def test_what_is_not_the_test_split_does_not_depend_on_it():
    made = arithmetic.split(500, MOST_HELDOUT, seed=0)
    train, warm, validation, _ = sets_of(SMALL)
    assert train + warm + validation == [p.question for p in made.train + made.heldout]


def test_an_evaluation_takes_the_first_so_many_of_its_split():
    for split in ("validation", "test"):
        few, many = (heldout(held_out(SMALL, split, n)) for n in (5, 50))
        assert few == many[:5]


def test_fewer_problems_than_asked_for_are_counted():
    with closing(prepare(held_out(SMALL, "validation", prompts=MOST_HELDOUT + 3))) as prepared:
        left_out = prepared.left_out
    assert ("prompts fewer than requested are in the split 'validation'", 3) in left_out


@pytest.fixture
def folder(tmp_path):
    for name, count in (("train", 30), ("test", 4)):
        rows = [{"question": f"{name} {n} ?", "answer": f"#### {n}"} for n in range(count)]
        if name == "train":
            rows[9] = rows[7]  # a question asked twice
        write(tmp_path / f"{name}.jsonl", rows)
    return tmp_path


def test_files_are_cut_only_when_validation_is_asked_for(folder):
    config = replace(SMALL, data=Data(path=str(folder), prompt="{question}"))
    whole, cut = (find_task(held_out(config, s)).task for s in ("test", "validation"))
    assert len(whole.train) == 30
    assert questions(whole.heldout) == [f"test {n} ?" for n in range(4)]
    assert questions(cut.heldout) == [f"train {n} ?" for n in (0, 7, 14, 21, 28)]
    assert len(cut.train) == 24  # the question asked twice is not trained on
    assert not set(questions(cut.heldout)) & set(questions(cut.train))
    assert {*questions(cut.heldout), *questions(cut.train)} == {*questions(whole.train)}
