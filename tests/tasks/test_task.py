import random

import pytest

from ogrpo.rewards.judge import ExactMatch
from ogrpo.rewards.reward import Reward
from ogrpo.tasks import Example, Task
from tests.tasks.test_official import write


def right(prompts, completions, *, answer, level=None, **columns):
    return [float(c == a) for c, a in zip(completions, answer, strict=True)]


def brief(completions):
    return [-float(len(c)) for c in completions]


def rows(n, start=0):
    return [
        {"prompt": f"How many is {i} + 1 ?", "answer": str(i + 1), "solution": f"{i} + 1 = {i + 1}"}
        for i in range(start, start + n)
    ]


def prompts(examples):
    return [example.prompt for example in examples]


def test_a_file_becomes_a_task(tmp_path):
    file = write(tmp_path / "own.jsonl", rows(50))
    task = Task.from_jsonl(file, rewards=[right, brief], weights=[1.0, 0.1])
    assert (task.name, len(task), len(task.heldout), task.is_chat) == ("own", 45, 5, False)
    assert [(r.name, r.weight) for r in task.rewards] == [("right", 1.0), ("brief", 0.1)]
    assert task.solutions == "solution"
    assert task.evaluation_rewards is None
    assert task.left_out == ()
    texts = list(task.texts())  # of training alone
    assert len(texts) == 2 * len(task)
    assert not set(texts) & set(prompts(task.heldout))
    numbered = {e.source: e for e in (*task.train, *task.heldout)}
    columns = {"answer": "3", "solution": "2 + 1 = 3"}
    assert numbered[f"{file}:3"] == Example("How many is 2 + 1 ?", columns, "anywhere")


def test_solutions_are_found_where_the_first_row_has_none():
    made = [{"prompt": "0 ?", "answer": "1"}, *rows(9)]
    assert Task.from_iterable(made, rewards=[right]).solutions == "solution"


def test_the_prompt_is_found_by_its_name_or_named():
    for name in ("prompt", "question", "problem"):
        made = [{name: f"{i} ?", "answer": "1"} for i in range(4)]
        task = Task.from_iterable(made, rewards=[right])
        assert sorted(prompts([*task.train, *task.heldout])) == ["0 ?", "1 ?", "2 ?", "3 ?"]
        assert task.train[0].columns == {"answer": "1"}
    both = [{"prompt": f"{i} ?", "question": f"why {i} ?", "answer": "1"} for i in range(4)]
    message = r"rows:1: has both 'prompt' and 'question'.*prompt=\.\.\. \(--data\.prompt-column\)\."
    with pytest.raises(ValueError, match=message):
        Task.from_iterable(both, rewards=[right])
    task = Task.from_iterable(both, rewards=[right], prompt="question")
    assert task.train[0].prompt.startswith("why")
    assert set(task.train[0].columns) == {"prompt", "answer"}


MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Weather in Rome ?"},
    {"role": "assistant", "content": None, "tool_calls": [{"name": "weather"}]},
    {"role": "tool", "content": "sunny", "name": None},
]


@pytest.mark.parametrize(
    ("last", "read", "file"),
    [("user", Task.from_parquet, "own.parquet"), ("tool", Task.from_file, "own.json")],
)
def test_prompts_may_be_messages(tmp_path, last, read, file):
    ends = ({"role": last, "content": f"{i} ?"} for i in range(4))
    made = [{"messages": [*MESSAGES, end]} for end in ends]
    task = read(write(tmp_path / file, made), rewards=[brief])
    assert (task.name, task.is_chat) == ("own", True)
    prompt = task.train[0].prompt
    assert [m["role"] for m in prompt] == ["system", "user", "assistant", "tool", last]
    assert prompt[2] == {"role": "assistant", "content": "", "tool_calls": [{"name": "weather"}]}
    assert prompt[3] == {"role": "tool", "content": "sunny"}  # None is no key
    assert "".join(task.texts()).count("Weather") == 3


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"promt": "?", "answer": "1"}, r"no column 'prompt'; there are \['answer', 'promt'\]: did you mean 'promt'"),
        ({"prompt": 3, "answer": "1"}, r"column 'prompt' is 3 \(int\); give a text, or a list of messages"),
        ({"prompt": "?"}, r"reward 'right' asks for column 'answer', which this line does not have; there are \[\]"),
        ({"prompt": "?", "answer": "1", "completions": 3}, "a column is named 'completions'.*rename the column"),
        ({"prompt": [], "answer": "1"}, "column 'prompt' has no message"),
        ({"prompt": MESSAGES[:3], "answer": "1"}, "column 'prompt'.*the last message is of role 'assistant'; a prompt ends with one of"),
        ({"prompt": [{"role": "user"}], "answer": "1"}, "column 'prompt'.*message 1 has content None; give a text"),
    ],
)  # fmt: skip
def test_a_bad_line_is_an_error_that_names_file_and_line(tmp_path, line, message):
    file = write(tmp_path / "own.jsonl", [*rows(2), line, *rows(2, start=5)])
    with pytest.raises(ValueError, match=rf"own\.jsonl:3: {message}"):
        Task.from_jsonl(file, rewards=[right], heldout=1)


def test_gold_answers_are_checked_when_they_are_read(tmp_path):
    made = [{"prompt": f"{i} ?", "answer": "abcd"[i % 4]} for i in range(8)]
    file = write(tmp_path / "own.jsonl", made)
    assert len(Task.from_jsonl(file, rewards=[ExactMatch()], heldout=2)) == 6
    made[5]["answer"] = "."
    write(file, made)
    with pytest.raises(ValueError, match=r"own\.jsonl:6: '\.' has no letters to compare"):
        Task.from_jsonl(file, rewards=[ExactMatch()], heldout=2)


def test_the_cut_has_the_size_that_is_asked_for():
    for n, amount, expected in [
        (50, None, 5), (2, None, 1), (6000, None, 512), (100, 0.25, 25), (100, 7, 7), (9, 0.01, 1), (9, 0, 0)
    ]:  # fmt: skip
        task = Task.from_iterable(rows(n), rewards=[right], heldout=amount)
        assert (len(task.heldout), len(task.train)) == (expected, n - expected)
        assert not set(prompts(task.train)) & set(prompts(task.heldout))


def test_the_cut_depends_on_neither_the_order_nor_the_other_columns_and_lines_added_move_few():
    made = rows(400)
    before = Task.from_iterable(made, rewards=[right])
    random.Random(0).shuffle(made)
    again = Task.from_iterable([row | {"level": 3} for row in made], rewards=[right])
    assert prompts(again.heldout) == prompts(before.heldout)
    after = Task.from_iterable(rows(420), rewards=[right])
    left = set(prompts(before.heldout)) - set(prompts(after.heldout))
    known = set(prompts(before.train))
    joined = known & set(prompts(after.heldout))
    assert len(left) + len(joined) <= 4


def test_a_heldout_prompt_that_comes_again_leaves_training_and_is_counted():
    made = rows(20)
    heldout = Task.from_iterable(made, rewards=[right], heldout=4).heldout
    repeat = {"prompt": heldout[0].prompt.replace(" ", "\n "), "answer": "other"}
    task = Task.from_iterable([*made, repeat, made[0]], rewards=[right], heldout=4)
    assert prompts(task.heldout) == prompts(heldout)
    assert repeat["prompt"] not in prompts(task.train)
    expected = 1 + (made[0]["prompt"] in prompts(heldout))
    assert task.left_out == (("training examples that ask a held-out prompt, left out", expected),)


def test_a_heldout_file_or_rows_are_taken_whole_and_kept_apart(tmp_path):
    file = write(tmp_path / "test.jsonl", rows(5, start=18))
    for heldout in (file, str(file), rows(5, start=18)):
        task = Task.from_iterable(rows(20), rewards=[right], heldout=heldout)
        assert prompts(task.heldout) == [row["prompt"] for row in rows(5, start=18)]
        assert len(task) == 18
        assert task.left_out[0][1] == 2
    with pytest.raises(ValueError, match=r"test\.jsonl:1: no column 'prompt'"):
        Task.from_iterable(rows(9), rewards=[right], heldout=write(file, [{"question": "?"}]))
    with pytest.raises(ValueError, match="no example is left to train on: all 3 ask a held-out"):
        Task.from_iterable(rows(3), rewards=[right], heldout=rows(5))


def test_the_limit_is_on_training_after_the_cut():
    whole, part = (Task.from_iterable(rows(50), rewards=[right], limit=n) for n in (None, 10))
    assert part.heldout == whole.heldout
    assert part.train == whole.train[:10]
    assert part.left_out == (("training examples beyond the limit, left out", 35),)
    with pytest.raises(ValueError, match="limit is 0"):
        Task.from_iterable(rows(50), rewards=[right], limit=0)


def test_a_task_to_evaluate_on_brings_its_examples_and_its_judge():
    questions = [Example("How many is 3 + 1 ?", {"answer": "4"}, "e:1")]
    exam = Task("exam", [], questions, (Reward("exam", right),))
    assert exam
    assert len(exam) == 0

    def graded(completions, level):  # a column of the training examples alone
        return [0.0] * len(completions)

    levels = [row | {"level": 3} for row in rows(20)]
    task = Task.from_iterable(levels, rewards=[graded]).evaluated_on(exam)
    assert task.heldout == exam.heldout
    assert [r.name for r in task.evaluation_rewards or ()] == ["exam"]
    assert "How many is 3 + 1 ?" not in prompts(task.train)
    message = r"task 'none' has no examples\. 3: gold answers nobody can read\."
    with pytest.raises(ValueError, match=message):
        Task("none", [], [], exam.rewards, left_out=(("gold answers nobody can read", 3),))


def test_the_reward_that_says_what_is_right_is_one_that_judges_held_out_answers():
    task = Task.from_iterable(rows(20), rewards=[right, brief], success="right")
    exam = Task.from_iterable(rows(9, 50), rewards=[Reward("exam", right)], heldout=3)
    assert (task.success, task.evaluated_on(exam).success) == ("right", None)
    with pytest.raises(ValueError, match=r"success is 'rigth', .* judged by \['right', 'brief'\]"):
        Task.from_iterable(rows(20), rewards=[right, brief], success="rigth")


def test_the_splits_of_a_data_set_are_taken_as_they_are():
    """A dict stands for a DatasetDict, which is one, of iterables of rows."""
    splits = {"train": rows(20), "test": rows(5, start=30)}
    task = Task.from_dataset(splits, rewards=[right])
    assert (task.name, len(task), len(task.heldout)) == ("dataset", 20, 5)
    assert len(Task.from_dataset(splits, rewards=[right], heldout=0.5).heldout) == 10
    assert len(Task.from_dataset({"train": rows(20)}, rewards=[right]).heldout) == 2
    three = splits | {"validation": rows(3, start=40)}
    with pytest.raises(ValueError, match="say which by heldout='validation'"):
        Task.from_dataset(three, rewards=[right])
    assert len(Task.from_dataset(three, rewards=[right], heldout="validation").heldout) == 3
    with pytest.raises(ValueError, match=r"heldout is 'dev', .* none of the splits \['test', '"):
        Task.from_dataset(three, rewards=[right], heldout="dev")
    with pytest.raises(ValueError, match=r"the splits are \['test'\]; one must be named 'train'"):
        Task.from_dataset({"test": rows(3)}, rewards=[right])
