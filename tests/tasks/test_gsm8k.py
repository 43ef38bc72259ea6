"""Reading GSM8K: the real files where they are at hand, and files with every fault."""

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from ogrpo.tasks.gsm8k import cut_validation, load
from ogrpo.tasks.problems import Problem, final_answer

ROOT = Path(__file__).parents[2]
REAL = Path(os.environ.get("OGRPO_GSM8K", ROOT / "../shared/gsm8k"))
needs_gsm8k = pytest.mark.skipif(
    not (REAL / "train.jsonl").is_file(),
    reason=f"no GSM8K in {REAL}: set OGRPO_GSM8K to a folder with train.jsonl and test.jsonl",
)
GOOD = {"question": "How many ?", "answer": "4/2 = <<4/2=2>>2\n#### 2"}


@needs_gsm8k
def test_the_real_files():
    split = load(REAL)
    assert (len(split.train), len(split.heldout)) == (7473, 1319)
    answers = [final_answer(p) for part in split for p in part]
    assert sum(int(answer) < 0 for answer in answers) == 5  # int: all are whole, no commas left
    assert not any("<<" in p.answer or ">>" in p.answer for part in split for p in part)
    assert any("\N{LINE SEPARATOR}" in p.question for p in split.train)
    assert split.train[16].source.endswith("train.jsonl:17")
    cut = cut_validation(split.train)
    assert (len(cut.train), len(cut.heldout)) == (6405, 1068)
    validation = {p.question for p in cut.heldout}
    assert not validation & {p.question for part in (cut.train, split.heldout) for p in part}


def test_validation_that_leaves_nothing_to_train_on_is_refused():
    with pytest.raises(ValueError, match=r"one in 7 of the 1 in train\.jsonl.*the test split"):
        cut_validation([Problem("How many ?", "#### 2")])


def test_a_solution_without_its_answer_is_named_with_file_and_line(tmp_path):
    bad = json.dumps(GOOD | {"answer": "It is 2."})
    (tmp_path / "train.jsonl").write_text(f"{json.dumps(GOOD)}\n{bad}\n")
    (tmp_path / "test.jsonl").touch()
    with pytest.raises(ValueError, match=r"train.jsonl:2: field 'answer' must end in '####"):
        load(tmp_path)


def test_what_is_missing_is_an_error_that_says_what_to_put_where(tmp_path, monkeypatch):
    (tmp_path / "train.jsonl").write_text(json.dumps(GOOD))
    with pytest.raises(ValueError, match=r"test\.jsonl is missing\. Put the official train\.jsonl"):
        load(tmp_path)
    with pytest.raises(ValueError, match=r"gone is not a folder\. Put the official train\.jsonl"):
        load(tmp_path / "gone")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match=r"pip install 'ogrpo\[hub\]'.*Put the official"):
        load("openai/gsm8k")


def test_a_hub_name_is_read_through_the_library(monkeypatch):
    """A stand-in for `datasets`, which is optional and needs a network."""
    answers = iter([{"train": [GOOD, GOOD], "test": [GOOD]}])

    def load_dataset(name, config):
        assert (name, config) == ("openai/gsm8k", "main")
        for answer in answers:
            return answer
        raise ConnectionError("no route")

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    split = load("openai/gsm8k")
    assert [len(part) for part in split] == [2, 1]
    assert split.heldout[0].answer == "4/2 = 2\n#### 2"
    assert split.train[1].source == "openai/gsm8k:train:2"
    with pytest.raises(ValueError, match=r"cannot read openai/gsm8k.*no route.*Put the official"):
        load("openai/gsm8k")
