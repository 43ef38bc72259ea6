"""The readers, on files in the official formats."""

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ogrpo.tasks import Task
from ogrpo.tasks.competition_math import boxed_content
from ogrpo.tasks.registry import TASKS, read_task

ROOT = Path(__file__).parents[2]
REAL = Path(os.environ.get("OGRPO_GSM8K", ROOT / "../shared/gsm8k"))


def score(task: Task, examples, texts):
    """What the task's reward makes of one completion of each example."""
    chat = not isinstance(examples[0].prompt, str)
    completions = [[{"role": "assistant", "content": text}] for text in texts] if chat else texts
    columns = {name: [e.columns[name] for e in examples] for name in examples[0].columns}
    reward = task.rewards[0].function
    try:
        return reward(prompts=[e.prompt for e in examples], completions=completions, **columns)
    finally:
        reward.close()


def own_reward(completions, level, **columns):
    return [0.5] * len(completions)


# GSM8K


def gsm8k_files(folder):
    for name, n in (("train", 20), ("test", 3)):
        rows = [
            {"question": f"Is {name} {i} ?", "answer": f"{i}+1 = <<{i}+1={i + 1}>>{i + 1}\n#### {i + 1}"}
            for i in range(n)
        ]  # fmt: skip
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_gsm8k(tmp_path):
    task = read_task("gsm8k", gsm8k_files(tmp_path))
    assert (len(task), len(task.heldout), task.solutions) == (20, 3, "solution")
    example = task.heldout[2]
    assert example.prompt.startswith("Is test 2 ?\nThink step by step")
    assert example.columns == {"answer": "3", "solution": "2+1 = 3\n#### 3"}
    assert example.source.endswith("test.jsonl:3")
    assert score(task, [example] * 3, ["so #### 3", "so #### 4", "three"]) == [1.0, 0.0, 0.0]
    validated = read_task("gsm8k", tmp_path, split="validation", prompt="{question}", limit=5)
    assert [e.prompt for e in validated.heldout] == [f"Is train {i} ?" for i in (0, 7, 14)]
    assert [e.prompt for e in validated.train] == [f"Is train {i} ?" for i in range(1, 6)]


@pytest.mark.skipif(not (REAL / "train.jsonl").is_file(), reason=f"no GSM8K in {REAL}")
def test_the_real_gsm8k():
    task = read_task("gsm8k", REAL)
    assert (len(task), len(task.heldout)) == (7473, 1319)
    assert task.left_out == ()
    assert task.protocol is not None
    assert task.protocol.samples == 1


# MATH


def math_problem(n, answer):
    return {
        "problem": f"Find $x$ if $x = {n}$.",
        "level": "Level 5",
        "type": "Algebra",
        "solution": f"We get $x = \\boxed{{{answer}}}$.",
    }


def math_folders(folder):
    for split, n in (("train", 12), ("test", 4)):
        for subject in ("algebra", "number_theory"):
            (folder / split / subject).mkdir(parents=True)
            for i in range(n // 2):
                row = math_problem(f"{split} {subject} {i}", "\\frac{1}{2}")
                (folder / split / subject / f"{i + 1}.json").write_text(json.dumps(row, indent=4))
    return folder


def test_math_in_its_official_folders(tmp_path):
    task = read_task("math", math_folders(tmp_path))
    assert (len(task), len(task.heldout), task.solutions) == (12, 4, "solution")
    example = task.heldout[0]
    assert example.source == str(tmp_path / "test/algebra/1.json")
    assert "x = test algebra 0" in example.prompt
    assert "\\boxed{}" in example.prompt
    assert example.columns == {
        "answer": "\\frac{1}{2}",
        "solution": "We get $x = \\boxed{\\frac{1}{2}}$.",
        "level": "Level 5",
        "type": "Algebra",
    }
    texts = ["it is \\boxed{0.5}", "it is \\boxed{2}", "it is 0.5"]
    assert score(task, [example] * 3, texts) == [1.0, 0.0, 0.0]


def test_math_reads_its_files_by_their_numbers(tmp_path):
    (tmp_path / "train/algebra").mkdir(parents=True)
    for i in (10, 2, 1):
        (tmp_path / f"train/algebra/{i}.json").write_text(json.dumps(math_problem(i, i)))
    task = read_task("math", tmp_path, split="validation")
    everything = sorted([*task.train, *task.heldout], key=lambda e: int(e.columns["answer"]))
    assert [Path(e.source).name for e in everything] == ["1.json", "2.json", "10.json"]
    assert len(task) == 2


def test_math_as_parquet_of_each_subject_and_as_jsonl(tmp_path):
    for split, n in (("train", 6), ("test", 2)):
        for subject in ("algebra", "geometry"):
            rows = [math_problem(f"{split} {subject} {i}", i + 1) for i in range(n)]
            (tmp_path / "parquet" / subject).mkdir(parents=True, exist_ok=True)
            file = tmp_path / "parquet" / subject / f"{split}-00000-of-00001.parquet"
            pq.write_table(pa.Table.from_pylist(rows), file)
        rows = [math_problem(f"{split} {i}", i) | {"answer": "34"} for i in range(n)]
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    by_subject, lines = read_task("math", tmp_path / "parquet"), read_task("math", tmp_path)
    assert (len(by_subject), len(by_subject.heldout)) == (12, 4)
    assert (len(lines), len(lines.heldout)) == (6, 2)
    assert {e.columns["answer"] for e in lines.train} == {"34"}


@pytest.mark.parametrize(
    ("solution", "answer"),
    [
        (r"first $\boxed{1}$, no: $\boxed{\frac{1}{2}}$", r"\frac{1}{2}"),
        (r"$\boxed{\text{even}}$", r"\text{even}"),
        (r"the set $\boxed{\{1, 2\}}$", r"\{1, 2\}"),
        (r"the half line $\boxed{\left\{x : x > 2\right.}$", r"\left\{x : x > 2\right."),
        (r"so $\boxed 7$ apples", "7"),
        (r"$\fbox{C}$", "C"),
    ],
)
def test_the_answer_stands_in_the_last_box(solution, answer):
    assert boxed_content(solution, "1.json") == answer


@pytest.mark.parametrize("solution", ["It is 2.", r"\boxed{2", r"\boxed{ }", ""])
def test_a_solution_without_an_answer_is_an_error_that_names_the_file(solution):
    with pytest.raises(ValueError, match=r"1\.json: column 'solution' has no answer in"):
        boxed_content(solution, "1.json")


def test_a_gold_answer_that_cannot_be_judged_is_left_out_and_counted(tmp_path):
    rows = [math_problem(i, i) for i in range(8)]
    rows[3] = math_problem(3, "\\frac{{}{")
    rows[3] |= {"answer": "\\frac{{}{"}
    rows = [{"answer": str(i), **row} for i, row in enumerate(rows)]
    for split in ("train", "test"):
        lines = [row | {"problem": f"{split}: {row['problem']}"} for row in rows]
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    task = read_task("math", tmp_path)
    assert (len(task), len(task.heldout)) == (7, 7)
    assert [count for _, count in task.left_out] == [1, 1]
    assert "train.jsonl:4" in task.left_out[0][0]


MATH_500 = {
    "problem": "Convert the point $(0,3)$ to polar coordinates.",
    "solution": "So $\\boxed{\\left( 3, \\frac{\\pi}{2} \\right)}.$",
    "answer": "\\left( 3, \\frac{\\pi}{2} \\right)",
    "subject": "Precalculus",
    "level": 2,
    "unique_id": "test/precalculus/807.json",
}


def test_math_500(tmp_path):
    (tmp_path / "test.jsonl").write_text(json.dumps(MATH_500) + "\n")
    task = read_task("math-500", tmp_path)
    assert (len(task), len(task.heldout), task.solutions) == (0, 1, None)
    by_file = read_task("math-500", tmp_path / "test.jsonl", rewards=[own_reward])
    assert by_file.heldout == task.heldout
    example = task.heldout[0]
    assert example.columns["answer"] == MATH_500["answer"]
    assert example.columns["unique_id"] == "test/precalculus/807.json"
    texts = ["\\boxed{(3, \\pi/2)}", "\\boxed{(\\pi/2, 3)}"]
    assert score(task, [example] * 2, texts) == [1.0, 0.0]
    assert task.protocol is not None
    assert task.protocol.samples == 16


# AIME 2024


def aime(answer):
    return {
        "id": 60,
        "problem": "Every morning Aya goes for a walk.",
        "solution": "...",
        "answer": answer,
        "url": "https://artofproblemsolving.com/",
        "year": "2024",
    }


def test_aime_24_in_both_formats(tmp_path):
    first, second = tmp_path / "first/data", tmp_path / "second"
    first.mkdir(parents=True)
    second.mkdir()
    pq.write_table(pa.Table.from_pylist([aime("204")]), first / "train-00000-of-00001.parquet")
    row = {"ID": "2024-I-1", "Problem": aime(0)["problem"], "Solution": "...", "Answer": 204}
    (second / "aime_2024.jsonl").write_text(json.dumps(row) + "\n")
    for folder in (tmp_path / "first", second):
        task = read_task("aime-24", folder)
        (example,) = task.heldout
        assert example.prompt.startswith("Every morning Aya")
        assert example.columns["answer"] == "204"
        assert score(task, [example] * 2, ["\\boxed{204}", "\\boxed{240}"]) == [1.0, 0.0]
        assert task.protocol is not None
        assert task.protocol.samples == 32
    with pytest.raises(ValueError, match=r"holds several files: .*Give one as path"):
        read_task("aime-24", tmp_path)


def test_an_answer_of_the_aime_is_a_number_below_a_thousand(tmp_path):
    file = tmp_path / "aime_2024.jsonl"
    file.write_text(json.dumps(aime("033")) + "\n")
    assert read_task("aime-24", file).heldout[0].columns["answer"] == "33"
    for answer in ("1000", "-3", "1.5", "x"):
        file.write_text(json.dumps(aime(answer)) + "\n")
        with pytest.raises(ValueError, match=r"aime_2024\.jsonl:1: column 'answer' is .*0 to 999"):
            read_task("aime-24", file)


# DeepScaleR-Preview and Guru-Math


def test_deepscaler(tmp_path):
    rows = [
        {"problem": f"Find the remainder of ${i}$.", "answer": str(i), "solution": "" if i % 2 else "..."}
        for i in range(20)
    ]  # fmt: skip
    (tmp_path / "deepscaler.json").write_text(json.dumps(rows, indent=2))
    task = read_task("deepscaler", tmp_path, heldout=4)
    assert (len(task), len(task.heldout), task.solutions) == (16, 4, "solution")
    texts = ["\\boxed{" + e.columns["answer"] + "}" for e in task.heldout]
    assert score(task, task.heldout, texts) == [1.0] * 4
    (tmp_path / "aime_2024.jsonl").write_text(json.dumps(aime("204")) + "\n")
    exam = read_task("aime-24", tmp_path / "aime_2024.jsonl")
    assert task.evaluated_on(exam).heldout == exam.heldout
    rows[2]["solution"] = None
    (tmp_path / "deepscaler.json").write_text(json.dumps(rows))
    with pytest.raises(ValueError, match=r"deepscaler\.json:entry 3: column 'solution' is None"):
        read_task("deepscaler", tmp_path)


def guru(n, **changed):
    question = f"What is {n} ? Please output the final answer within \\boxed{{}}."
    return {
        "data_source": "math__deepscaler_preview",
        "prompt": [{"role": "user", "content": question}],
        "ability": "math",
        "apply_chat_template": True,
        "reward_model": {"style": "rule", "ground_truth": str(n)},
        "extra_info": {"split": "train", "index": n, "original_question": f"What is {n} ?"},
        "qwen2.5_7b_pass_rate": 0.5,
        "qwen3_30b_pass_rate": 0.75,
        **changed,
    }


def test_guru_math(tmp_path):
    rows = [*(guru(n) for n in range(20)), guru(20, data_source="codegen__leetcode2k")]
    (tmp_path / "train").mkdir()
    file = tmp_path / "train/math__combined_54.4k.parquet"
    pq.write_table(pa.Table.from_pylist(rows), file)
    task = read_task("guru-math", tmp_path)
    assert (len(task), len(task.heldout)) == (18, 2)
    assert task.left_out == (("rows of other domains than mathematics, left out", 1),)
    example = task.heldout[0]
    assert example.prompt.endswith("Please output the final answer within \\boxed{}.")
    assert example.columns["qwen2.5_7b_pass_rate"] == 0.5
    assert score(task, [example], ["\\boxed{" + example.columns["answer"] + "}"]) == [1.0]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"reward_model": {"style": "rule"}}, "'reward_model': no column 'ground_truth'"),
        ({"reward_model": None}, "column 'reward_model' is None"),
        ({"prompt": []}, r"column 'prompt' is \[\]; give one user's message"),
        ({"prompt": [{"role": "system", "content": "?"}]}, "give one user's message"),
    ],
)
def test_a_bad_row_of_guru_is_named(tmp_path, changed, message):
    file = tmp_path / "math__combined_54.4k.parquet"
    pq.write_table(pa.Table.from_pylist([guru(1, **changed)]), file)
    with pytest.raises(ValueError, match=rf"54\.4k\.parquet:row 1.*{message}"):
        read_task("guru-math", tmp_path)


# ToolACE

SYSTEM = (
    "You are an expert in composing functions. Here is a list of functions in JSON format that you "
    'can invoke:\n[{"name": "Market Trends API", "parameters": {"type": "dict"}}]'
)
CALL = '[Market Trends API(trend_type="MARKET_INDEXES", country="us")]'


def toolace(n, *more):
    said = [("user", f"What moves market {n} ?"), ("assistant", CALL), *more]
    turns = [{"from": who, "value": text} for who, text in said]
    return {"system": SYSTEM, "conversations": turns}


REST = (
    ("tool", '[{"name": "Market Trends API", "results": {"trends": ["up"]}}]'),
    ("assistant", "Markets are up."),
    ("user", "And in 7 days ?"),
    ("assistant", "[Market Trends API(days=7)]"),
)


def test_toolace(tmp_path):
    (tmp_path / "data.json").write_text(json.dumps([toolace(n, *REST) for n in range(20)]))
    task = read_task("toolace", tmp_path)
    assert task.is_chat
    assert (len(task), len(task.heldout)) == (36, 4)
    assert task.left_out == (("turns of the assistant in words, left out", 20),)
    by_opening = [{e.prompt[1]["content"] for e in part} for part in (task.train, task.heldout)]
    assert not by_opening[0] & by_opening[1]
    short, long = sorted(task.heldout[:2], key=lambda e: len(e.prompt))
    assert [m["role"] for m in short.prompt] == ["system", "user"]
    assert [m["role"] for m in long.prompt][2:] == ["assistant", "tool", "assistant", "user"]
    assert (short.columns, long.columns) == ({"answer": CALL}, {"answer": REST[-1][1]})
    again = "[Market Trends API(country='us', trend_type='MARKET_INDEXES')]"
    texts = [again, CALL.replace("us", "uk"), "I would ask the Market Trends API."]
    assert score(task, [short] * 3, texts) == [1.0, 0.0, 0.0]


def test_calls_of_toolace_that_cannot_be_read_are_left_out_and_counted(tmp_path):
    odd = toolace(5)
    odd["conversations"][1]["value"] = "[Market Trends API(country=)]"
    rows = [*(toolace(n) for n in range(5)), odd]
    (tmp_path / "data.json").write_text(json.dumps(rows))
    label = "turns of the assistant whose calls cannot be read, left out"
    assert read_task("toolace", tmp_path).left_out == ((label, 1),)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"conversations": "?"}, "column 'conversations' is '\\?'; give a list"),
        ({"conversations": [{"from": "gpt", "value": "?"}]}, "turn 1: 'from' is 'gpt'; one of"),
        ({"conversations": [{"from": "user"}]}, "turn 1: no column 'value'"),
        ({"system": None}, "column 'system' is None"),
    ],
)
def test_a_bad_entry_of_toolace_is_named(tmp_path, changed, message):
    (tmp_path / "data.json").write_text(json.dumps([toolace(1), toolace(2) | changed]))
    with pytest.raises(ValueError, match=rf"data\.json:entry 2.*{message}"):
        read_task("toolace", tmp_path)


# Generated problems, and all tasks


def test_the_generated_problems_are_those_of_their_module():
    from ogrpo.tasks import arithmetic

    task = read_task("arithmetic", train=50, heldout=10, seed=3)
    made = arithmetic.split(50, 10, 3)
    assert [e.prompt for e in task.train] == [p.question for p in made.train]
    assert [e.columns["solution"] for e in task.heldout] == [p.answer for p in made.heldout]
    texts = [e.columns["solution"] for e in task.heldout]
    assert score(task, task.heldout, texts) == [1.0] * 10
    with pytest.raises(ValueError, match="task 'arithmetic' reads no files, and the path is DIR"):
        read_task("arithmetic", "DIR")
    with pytest.raises(ValueError, match="train is 0"):
        read_task("arithmetic", train=0)


@pytest.mark.parametrize("name", sorted(set(TASKS) - {"arithmetic", "word-problems"}))
def test_data_that_are_not_there_are_answered_with_what_is_wanted(name, tmp_path):
    source = r"(github\.com|huggingface\.co)/"
    for path in (None, tmp_path / "gone", tmp_path):
        with pytest.raises(ValueError, match=rf"(Wanted: |Put the official).*{source}") as caught:
            read_task(name, path)
        assert path is None or str(path) in str(caught.value)


@pytest.mark.parametrize("name", sorted(TASKS))
def test_every_reader_names_itself_and_a_way_to_evaluate(name):
    reader = TASKS[name]
    assert reader.name == name
    assert reader.protocol.samples >= 1
    assert 0.0 <= reader.protocol.temperature <= 1.0
    assert reader.protocol.max_tokens >= 1


def test_unknown_tasks_and_options_are_answered_with_the_nearest(tmp_path):
    with pytest.raises(ValueError, match=r"no task 'math500'; there are .*mean 'math-500'\?"):
        read_task("math500", tmp_path)
    with pytest.raises(ValueError, match=r"'gsm8k' has no option 'limits'.*mean 'limit'\?"):
        read_task("gsm8k", tmp_path, limits=3)
    with pytest.raises(ValueError, match=r"split is 'dev'; choose one of \['test', 'validation'\]"):
        read_task("gsm8k", tmp_path, split="dev")


def test_a_prompt_and_a_reward_of_ones_own_take_the_place_of_the_task_s(tmp_path):
    (tmp_path / "test.jsonl").write_text(json.dumps(MATH_500) + "\n")
    task = read_task("math-500", tmp_path, prompt="Q: {question}\nA:", rewards=[own_reward])
    assert task.heldout[0].prompt == f"Q: {MATH_500['problem']}\nA:"
    assert [r.name for r in task.rewards] == ["own_reward"]
    assert task.evaluation_rewards is None
    with pytest.raises(ValueError, match=r"prompt 'Q:' has no \{question\} in it"):
        read_task("math-500", tmp_path, prompt="Q:")
