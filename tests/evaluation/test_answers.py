import json
from math import nan

import pytest

from ogrpo.evaluation import AnswerFile
from tests.evaluation.engines import record

MESSAGES = ({"role": "system", "content": "think"}, {"role": "user", "content": "[bold]2 + 2?"})


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"prompt": MESSAGES},
        {"text": "line\nbreak \u2028 \x85 \ud800 \U0001f600 \x00"},
        {"text": "", "finish_reason": "length"},
        {"correct": nan},
        {"columns": {"answer": ["1", "2"], "n": 3, "deep": {"a": [None, True, 0.1]}}},
        {"values": {"a": 0.5, "b": nan}, "reward": nan, "failed": True},
    ],
)
def test_a_line_is_json_with_all_that_a_reward_reads(tmp_path, changes):
    answers = [record(n, g, **changes) for n, g in ((0, 0), (0, 1), (1, 3))]
    with AnswerFile(tmp_path / "a.jsonl") as file:
        file.write(answers[:2])
        file.write(answers[2:])
        written = file.path.read_bytes()  # before it is closed: it outlives the process
    for line, answer in zip(map(json.loads, written.splitlines()), answers, strict=True):
        expected = {**vars(answer), "tokens": answer.tokens, "rewards": answer.values}
        del expected["values"]
        assert line.keys() == expected.keys()
        for name, value in line.items():
            shown = json.loads(json.dumps(expected[name]).replace("NaN", "null"))
            assert value == shown, name
