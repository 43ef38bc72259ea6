"""The Big List of Naughty Strings through whatever takes a text."""

import itertools
import json
from contextlib import closing
from html.parser import HTMLParser
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ogrpo.data.tokenizer import train_bpe, word_level
from ogrpo.report.run_page import Answer, PageData, Sample, write_report
from ogrpo.rewards.extract import EXTRACTORS
from ogrpo.rewards.judge import ExactMatch
from ogrpo.rewards.math import MathReward
from ogrpo.rewards.text import same_text
from ogrpo.tasks.rows import read_rows
from ogrpo.tasks.task import Task
from tests.report.make import make_run
from tests.rewards.functions import length

HERE = Path(__file__).parent / "big_list_of_naughty_strings"
STRINGS = json.loads((HERE / "blns.json").read_text(encoding="utf-8"))
FINISHED = ["stop"] * len(STRINGS)


def test_all_of_them_are_here():
    assert (len(STRINGS), sum(not text.isascii() for text in STRINGS)) == (515, 96)


@pytest.mark.slow
def test_none_of_them_is_the_answer_to_anything_else():
    """As a completion, in a box and behind a marker, against a gold answer that none of them is."""
    boxed, marked = ([form.format(x) for x in STRINGS] for form in ("so \\boxed{{{}}}", "#### {}"))
    ways, golds = [*STRINGS, *boxed, *marked], ["271828"] * 3 * len(STRINGS)
    judges = [MathReward(EXTRACTORS["marker"]), ExactMatch(EXTRACTORS["choice"]), ExactMatch()]
    outcomes = [judge.judge_all(ways, FINISHED * 3, golds) for judge in judges]
    some = ways[::9]  # the judge that reads formulas takes its time
    with closing(MathReward(EXTRACTORS["free"], seconds=0.5)) as free:
        outcomes.append(free.judge_all(some, FINISHED[: len(some)], golds[: len(some)]))
    assert {*itertools.chain(*outcomes)} <= {"wrong", "unparsable"}


def test_each_is_itself_where_texts_are_compared():
    """But for those without a letter to compare, which are refused as gold answers."""
    judge = ExactMatch(lambda text: text)
    same = [text for text in STRINGS if same_text(text, text)]
    assert set(judge.judge_all(same, FINISHED[: len(same)], same)) == {"correct"}
    assert len(same) == 511
    for text in set(STRINGS) - {*same}:
        with pytest.raises(ValueError, match=r"blns.json:1: .* has no letters to compare"):
            judge.check_golds([text], ["blns.json:1"])


def test_a_tokenizer_gives_each_back_and_words_that_it_lacks_are_named():
    tokenizer = train_bpe(STRINGS, 512)
    for text in STRINGS:
        assert tokenizer.decode(tokenizer.encode(text)) == text
        assert text in tokenizer.render_prompt(text)
    words = word_level(["2", "+"])
    for text in STRINGS:
        if text.split():
            with pytest.raises(ValueError, match=r"is not in the vocabulary of 5 tokens"):
                words.encode(text)


def test_files_of_a_task_give_each_back(tmp_path):
    rows = [{"prompt": f"{n}: {text}", "answer": text} for n, text in enumerate(STRINGS)]
    lines = [json.dumps(row, ensure_ascii=n % 2 == 0) for n, row in enumerate(rows)]
    (tmp_path / "own.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
    (tmp_path / "own.json").write_text(json.dumps(rows, ensure_ascii=False), encoding="utf-8")
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "own.parquet")
    for ending in ("jsonl", "json", "parquet"):
        assert [row.columns for row in read_rows(tmp_path / f"own.{ending}")] == rows
    task = Task.from_jsonl(tmp_path / "own.jsonl", rewards=[length])
    answers = {one.prompt: one.columns["answer"] for one in (*task.train, *task.heldout)}
    assert answers == {row["prompt"]: row["answer"] for row in rows}


class Elements(HTMLParser):
    """The elements of a page, and the texts between."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple] = []
        self.texts: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        values = [(k, v if k in ("class", "lang") else None) for k, v in attrs if k != "src"]
        self.elements.append((tag, *values))

    def handle_endtag(self, tag):
        self.elements.append((f"/{tag}",))

    def handle_comment(self, data):
        self.elements.append(("comment", data))

    def handle_pi(self, data):
        self.elements.append(("instruction", data))

    def handle_data(self, data):
        self.texts.append(data)


def page_of(folder, strings):
    """The report of a run in which every text is one of the strings."""
    text = iter(strings)
    config = {
        "preset": next(text), "task": next(text), "seed": 0, "schedule": {"steps": 2},
        "evaluation": {"split": next(text)}, "algorithm": next(text), "options": list(strings),
    }  # fmt: skip
    samples = [Sample(s, s, Answer(s, True), Answer(s, False)) for s in strings]
    run = make_run(folder, step=20)
    run.write_config(config)
    data = PageData(strings[-1], strings[-2], samples, [(s, s) for s in strings])
    write_report(run, config, data)
    return run.report.read_text()


@pytest.mark.slow
def test_a_report_shows_them_and_obeys_none(tmp_path):
    plain = page_of(tmp_path / "plain", ["text"] * len(STRINGS))
    naughty = page_of(tmp_path / "na$\\ughty$ [red] <script>", STRINGS)
    assert Elements(naughty).elements == Elements(plain).elements
    shown = "".join(Elements(naughty).texts)
    assert [x for x in STRINGS if x.replace("\r", "\n") not in shown and x not in shown] == []
