"""The readers, on files in the official formats."""

import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ogrpo.tasks import Task, arithmetic
from ogrpo.tasks.competition_math import boxed_content
from ogrpo.tasks.registry import TASKS, read_task
from tests.rewards.pools import one_verifier  # noqa: F401

pytestmark = pytest.mark.usefixtures("one_verifier")


def score(task: Task, examples, texts):
    """Returns what the task's reward makes of one completion of each example."""
    answers = [e.columns["answer"] for e in examples]
    return task.rewards[0].function([e.prompt for e in examples], texts, answers)


def write(file, rows):
    """Writes rows as the file's ending says."""
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), file)
    elif file.suffix == ".json":
        file.write_text(json.dumps(rows, indent=2))
    else:
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def half(completions, level, **columns):
    return [0.5] * len(completions)


def test_gsm8k(tmp_path):
    for name, n in (("train", 20), ("test", 3)):
        rows = [
            {"question": f"Is {name} {i} ?", "answer": f"{i}+1 = <<{i}+1={i + 1}>>{i + 1}\n#### {i + 1}"}
            for i in range(n)
        ]  # fmt: skip
        write(tmp_path / f"{name}.jsonl", rows)
    task = read_task("gsm8k", tmp_path)
    assert (len(task), len(task.heldout), task.solutions) == (20, 3, "solution")
    example = task.heldout[2]
    assert example.prompt.startswith("Is test 2 ?\nThink step by step")
    assert example.columns == {"answer": "3", "solution": "2+1 = 3\n#### 3"}
    assert example.source.endswith("test.jsonl:3")
    assert score(task, [example] * 3, ["so #### 3", "so #### 4", "three"]) == [1.0, 0.0, 0.0]
    validated = read_task("gsm8k", tmp_path, split="validation", prompt="{question}", limit=5)
    assert [e.prompt for e in validated.heldout] == [f"Is train {i} ?" for i in (0, 7, 14)]
    assert [e.prompt for e in validated.train] == [f"Is train {i} ?" for i in range(1, 6)]


def math_problem(n, answer):
    return {
        "problem": f"Find $x$ if $x = {n}$.",
        "level": "Level 5",
        "type": "Algebra",
        "solution": f"We get $x = \\boxed{{{answer}}}$.",
    }


def test_math_in_its_official_folders_whose_files_are_read_by_their_numbers(tmp_path):
    for split, n in (("train", 6), ("test", 2)):
        for subject in ("algebra", "number_theory"):
            for i in range(9, 9 + n):
                row = math_problem(f"{split} {subject} {i}", "\\frac{1}{2}")
                write(tmp_path / split / subject / f"{i}.json", row)
    task = read_task("math", tmp_path)
    assert (len(task), len(task.heldout), task.solutions) == (12, 4, "solution")
    numbers = [Path(e.source).name for e in task.train[:6]]
    assert numbers == [f"{i}.json" for i in range(9, 15)]
    example = task.heldout[0]
    assert example.source == str(tmp_path / "test/algebra/9.json")
    assert "x = test algebra 9" in example.prompt
    assert "\\boxed{}" in example.prompt
    assert example.columns == {
        "answer": "\\frac{1}{2}",
        "solution": "We get $x = \\boxed{\\frac{1}{2}}$.",
        "level": "Level 5",
        "type": "Algebra",
    }
    texts = ["it is \\boxed{0.5}", "it is \\boxed{2}", "it is 0.5"]
    assert score(task, [example] * 3, texts) == [1.0, 0.0, 0.0]
    validated = read_task("math", tmp_path, split="validation")
    assert (len(validated), len(validated.heldout)) == (11, 1)
    (tmp_path / "train/algebra/9.json").write_text("[]")
    with pytest.raises(ValueError, match=r"algebra/9\.json: list; give a JSON object"):
        read_task("math", tmp_path)


def test_math_as_parquet_of_each_subject_and_as_jsonl(tmp_path):
    for split, n in (("train", 6), ("test", 2)):
        for subject in ("algebra", "geometry"):
            rows = [math_problem(f"{split} {subject} {i}", i + 1) for i in range(n)]
            write(tmp_path / "parquet" / subject / f"{split}-00000-of-00001.parquet", rows)
        rows = [math_problem(f"{split} {i}", i) | {"answer": "34"} for i in range(n)]
        write(tmp_path / f"{split}.jsonl", rows)
    by_subject, lines = read_task("math", tmp_path / "parquet"), read_task("math", tmp_path)
    assert (len(by_subject), len(by_subject.heldout)) == (12, 4)
    assert (len(lines), len(lines.heldout)) == (6, 2)
    assert {e.columns["answer"] for e in lines.train} == {"34"}


@pytest.mark.parametrize(
    ("solution", "answer"),
    [
        (r"first $\boxed{1}$, no: $\boxed{\frac{1}{2}}$", r"\frac{1}{2}"),
        (r"the set $\boxed{\{1, 2\}}$", r"\{1, 2\}"),
        (r"the half line $\boxed{\left\{x : x > 2\right.}$", r"\left\{x : x > 2\right."),
        *((solution, None) for solution in ("It is 2.", r"\boxed{2", r"\boxed{ }", "")),
    ],
)
def test_the_answer_stands_in_the_last_box_or_the_file_is_named(solution, answer):
    if answer is not None:
        assert boxed_content(solution, "1.json") == answer
    else:
        with pytest.raises(ValueError, match=r"1\.json: column 'solution' has no answer in"):
            boxed_content(solution, "1.json")


def test_a_gold_answer_that_cannot_be_judged_is_left_out_and_counted(tmp_path):
    rows = [math_problem(i, i) | {"answer": str(i)} for i in range(8)]
    rows[3]["answer"] = "\\frac{{}{"
    for split in ("train", "test"):
        lines = [row | {"problem": f"{split}: {row['problem']}"} for row in rows]
        write(tmp_path / f"{split}.jsonl", lines)
    task = read_task("math", tmp_path)
    assert (len(task), len(task.heldout)) == (7, 7)
    assert [count for _, count in task.left_out] == [1, 1]
    assert "train.jsonl:4" in task.left_out[0][0]
    assert len(read_task("math", tmp_path, rewards=[half])) == 8


MATH_500 = math_problem(3, "\\left( 3, \\frac{\\pi}{2} \\right)") | {
    "answer": "\\left( 3, \\frac{\\pi}{2} \\right)",
    "unique_id": "test/precalculus/807.json",
}


def test_math_500_and_a_prompt_and_a_reward_in_place_of_its_own(tmp_path):
    write(tmp_path / "test.jsonl", [MATH_500])
    task = read_task("math-500", tmp_path)
    assert (len(task), len(task.heldout), task.solutions) == (0, 1, None)
    example = task.heldout[0]
    assert example.columns == {n: x for n, x in MATH_500.items() if n != "problem"}
    texts = ["\\boxed{(3, \\pi/2)}", "\\boxed{(\\pi/2, 3)}"]
    assert score(task, [example] * 2, texts) == [1.0, 0.0]
    other = read_task("math-500", tmp_path / "test.jsonl", prompt="Q: {question}", rewards=[half])
    assert other.heldout[0].prompt == f"Q: {MATH_500['problem']}"
    assert other.heldout[0].columns == example.columns
    assert ([r.name for r in other.rewards], other.evaluation_rewards) == (["half"], None)
    with pytest.raises(ValueError, match=r"prompt 'Q:' has no \{question\} in it"):
        read_task("math-500", tmp_path, prompt="Q:")


def aime(answer):
    return {"id": 60, "problem": "Every morning Aya goes for a walk.", "answer": answer}


def test_aime_24_in_both_formats(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    write(first / "data/train-00000-of-00001.parquet", [aime("204"), aime("033")])
    row = {"ID": "2024-I-1", "Problem": aime(0)["problem"], "Answer": 204}
    write(second / "aime_2024.jsonl", [row, row | {"Answer": 33}])
    for folder in (first, second):
        task = read_task("aime-24", folder)
        example, other = task.heldout
        assert example.prompt.startswith("Every morning Aya")
        assert (example.columns["answer"], other.columns["answer"]) == ("204", "33")
        assert score(task, [example] * 2, ["\\boxed{204}", "\\boxed{240}"]) == [1.0, 0.0]
    with pytest.raises(ValueError, match=r"holds several files: .*Give one as path"):
        read_task("aime-24", tmp_path)


def test_deepscaler(tmp_path):
    rows = [{"problem": f"Find ${n}$.", "answer": f"{n}", "solution": "." * n} for n in range(20)]
    write(tmp_path / "deepscaler.json", rows)
    (tmp_path / ".cache").mkdir()  # what `hf download` writes beside it
    (tmp_path / ".cache/deepscaler.json.metadata").touch()
    task = read_task("deepscaler", tmp_path, heldout=4)
    assert (len(task), len(task.heldout), task.solutions) == (16, 4, "solution")
    texts = ["\\boxed{" + e.columns["answer"] + "}" for e in task.heldout]
    assert score(task, task.heldout, texts) == [1.0] * 4


@pytest.mark.parametrize("answer", ["1000", "-3", "1.5", "x"])
def test_a_bad_row_is_named(tmp_path, answer):
    write(tmp_path / "aime_2024.jsonl", [aime(answer)])
    with pytest.raises(ValueError, match=r"aime_2024\.jsonl:1: column 'answer' is .*0 to 999"):
        read_task("aime-24", tmp_path)


def test_the_generated_problems_are_those_of_their_module():
    task = read_task("arithmetic", train=50, heldout=10, seed=3)
    problems = arithmetic.split(50, 10, 3)
    assert [e.prompt for e in task.train] == [p.question for p in problems.train]
    assert [e.columns["solution"] for e in task.heldout] == [p.answer for p in problems.heldout]
    texts = [e.columns["solution"] for e in task.heldout]
    assert score(task, task.heldout, texts) == [1.0] * 10


MADE = ("arithmetic", "word-problems")


@pytest.mark.parametrize("name", MADE)
def test_a_task_that_is_made_has_no_path_and_some_problems(name):
    with pytest.raises(ValueError, match=f"task '{name}' reads no files, and the path is DIR"):
        read_task(name, "DIR")
    with pytest.raises(ValueError, match="train is 0"):
        read_task(name, train=0)


@pytest.mark.parametrize("name", sorted(set(TASKS) - {*MADE}))
def test_a_task_without_its_files_names_those_and_their_source(name, tmp_path):
    source = r"(github\.com|huggingface\.co)/"
    for path in (None, tmp_path / "gone", tmp_path):
        with pytest.raises(ValueError, match=rf"(Needed: |Put the official).*{source}") as caught:
            read_task(name, path)
        assert path is None or str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "math500",
            {},
            r"no task .math500.; there are .* chains .* end in \.jsonl, .*mean 'math-500'\?",
        ),
        ("folder", {}, r"no task 'folder'; there are .* \.csv or \.parquet\.$"),
        ("gsm8k", {"limits": 3}, r"'gsm8k' has no option 'limits'.*mean 'limit'\?"),
        ("gsm8k", {"split": "dev"}, r"split is 'dev'; choose one of \['test', 'validation'\]"),
    ],
)
def test_unknown_tasks_and_options_are_answered_with_the_nearest(tmp_path, name, options, message):
    with pytest.raises(ValueError, match=message):
        read_task(name, tmp_path, **options)


def test_the_tables_of_the_page_hold_every_task_and_its_protocol():
    page = (Path(__file__).parents[2] / "docs/tasks.md").read_text()
    rows = [line.split(" | ") for line in page.splitlines() if re.match(r"\| `[\w-]+` \|", line)]
    protocols = {
        cells[0].strip("| `"): [float(cell.strip("| ")) for cell in cells[1:]]
        for cells in rows
        if re.fullmatch(r"\d+", cells[1])
    }
    stated = {name: reader.protocol for name, reader in TASKS.items()}
    assert protocols == {k: [p.samples, p.temperature, p.max_tokens] for k, p in stated.items()}
    named = [cells[0].strip("| `") for cells in rows]
    assert all(named.count(name) == 2 for name in TASKS)
