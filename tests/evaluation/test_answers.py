import json
import os
import subprocess
import sys
from math import isnan

import pytest

from ogrpo.evaluation import AnswerFile, read_answers
from ogrpo.evaluation.answers import to_line
from tests.evaluation.engines import FAILED, record

MESSAGES = ({"role": "system", "content": "think"}, {"role": "user", "content": "[bold]2 + 2?"})


def write(path, *answers):
    with AnswerFile(path) as file:
        file.write(answers)
    return path


def same(a, b):
    """Equality in which NaN is NaN."""
    return to_line(a) == to_line(b)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"prompt": MESSAGES},
        {"text": "line\nbreak \u2028 \x85 \ud800 \U0001f600 \x00"},
        {"text": "", "finish_reason": "length"},
        {"correct": FAILED},
        {"columns": {"answer": ["1", "2"], "n": 3, "deep": {"a": [None, True, 0.1]}}},
        {"values": {"a": 0.5, "b": FAILED}, "reward": FAILED, "failed": True},
    ],
)
def test_what_was_written_is_read(tmp_path, changes):
    first, second = record(**changes), record(1, 3, **changes)
    found = read_answers(write(tmp_path / "a.jsonl", first, second))
    assert same(found[0], first)
    assert same(found[1], second)
    assert found[0].text == first.text
    assert found[0].prompt == first.prompt
    assert isnan(found[0].reward) == isnan(first.reward)


def test_what_was_written_outlives_the_process(tmp_path):
    script = """
import os, sys
from ogrpo.evaluation import AnswerFile
from tests.evaluation.engines import record
file = AnswerFile(sys.argv[1])
for problem in range(3):
    file.write([record(problem, 0), record(problem, 1)])
os._exit(9)
"""
    path = tmp_path / "a.jsonl"
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run([sys.executable, "-c", script, str(path)], env=found, check=False)
    assert done.returncode == 9
    assert len(read_answers(path)) == 6


def changed(**fields):
    found = json.loads(to_line(record(1)))
    for name, value in fields.items():
        if value is ...:
            del found[name]
        else:
            found[name] = value
    return json.dumps(found).encode() + b"\n"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (to_line(record(1))[:-9], "not a line of JSON: it is cut short; take the line out"),
        (b"\xff\xfe\n", "not a line of JSON"),
        (b"[" * 100_000 + b"\n", "nested too deeply"),
        (changed(text=...), "lacks 'text'"),
        (changed(problem=True), "'problem' is True; it is a int"),
        (changed(prompt=3), "'prompt' is 3; it is a str or list"),
        (changed(failed="no"), "'failed' is 'no'; it is a bool"),
        (changed(finish_reason="tired"), "'finish_reason' is 'tired'; it is one of stop"),
        (changed(tokens=7), "not 7 whole numbers"),
        (changed(rewards={"correct": "1"}), "reward 'correct' is '1'"),
        (changed(rewards={"correct": float("inf")}), "reward 'correct' is inf"),
        (changed(rewards={"other": 1}), r"has the rewards \['other'\] and the first line"),
        (changed(problem=0), "sample 0 of problem 0 is line 1 already"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, message):
    path = write(tmp_path / "a.jsonl", record())
    with open(path, "ab") as file:
        file.write(line)
    with pytest.raises(ValueError, match=rf"a\.jsonl:2.*{message}"):
        read_answers(path)
