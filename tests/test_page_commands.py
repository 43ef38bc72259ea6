"""The commands of README's and docs' code blocks run, each page's in its order, with little to do.

A block that needs more than a test has says what by `<!-- needs: ... -->` (tests/test_pages.py has the
reasons); every other one runs here, as does Python that trains. LITTLE is the table of how a command
is made small: options behind its own, where the last counts.
"""

import contextlib
import importlib
import json

import pytest

import ogrpo
from ogrpo.cli.main import main
from tests.benchmarks.test_foreign import TRAINER
from tests.models.tiny_gguf import small_config, write_gguf
from tests.policy.tiny import make_params
from tests.run.rewards import even_length
from tests.run.small_run import make_parts_again
from tests.run.test_api import ROWS, SETTINGS
from tests.test_pages import BLOCKS, TRAINS, write_files

TRAIN = """--schedule.steps 2 --schedule.prompts 4 --schedule.evaluate-every 2
--rollout.group-size 4 --certificate.completions 12 --evaluation.prompts 4 --evaluation.samples 2
--evaluation.token-samples 2 --evaluation.no-gradient-variance""".split()
IMITATE = "--warm-start.steps 4 --warm-start.no-cache --rollout.max-tokens 16".split()
FROM_MODEL = "--rollout.max-tokens 16 --optimizer.microbatches 1 --schedule.stages 1".split()
LITTLE = {
    "ogrpo train": (*TRAIN, *IMITATE),
    "ogrpo train --model.path": (*TRAIN, *FROM_MODEL),
    "ogrpo train --resume": ("--schedule.steps", "3"),
    "ogrpo eval": ("--samples", "2", "--max-tokens", "4"),
    **{f"ogrpo {name}": () for name in ("report", "compare", "certify", "logs", "model", "plan")},
    "python -m experiments.run gsm8k": TRAIN,
    "python -m experiments.run gsm8k --model.path": (*TRAIN, *FROM_MODEL),
    "python -m benchmarks.reliability --command": ("--runs", "1"),
}
SHELL = [block for block in BLOCKS if block.commands and not block.needs]
TRAINING = [block for block in BLOCKS if block.kind == "python" and TRAINS in block.text]


def kind_of(words):
    """The entry of LITTLE that a command has: the one that has most words of it."""
    kinds = [kind for kind in LITTLE if {*kind.split()} <= {*words}]
    return max(kinds, key=len, default=None)


def test_each_command_runs_or_its_block_says_what_it_needs():
    commands = [(str(block), words) for block in SHELL for words in block.commands]
    assert len(commands) > 20
    assert [command for command in commands if kind_of(command[1]) is None] == []


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with what pages speak of: problems, a reward, a trainer, a GGUF file, runs, a model."""
    folder = tmp_path_factory.mktemp("place")
    write_files(folder)
    (folder / "train.py").write_text(TRAINER)
    write_gguf(folder / "FILE.gguf", small_config("Llama"), make_params(small_config("Llama")))
    task = ["--task", "problems.jsonl", "--rewards", "my_rewards.py:reward"]
    with contextlib.chdir(folder), pytest.MonkeyPatch.context() as patch:
        patch.setenv("OGRPO_CACHE_DIR", str(folder / "cache"))
        patch.setattr("ogrpo.run.main.make_parts", make_parts_again)
        for run in ("RUN", "OTHER"):
            assert main(["train", *task, *LITTLE["ogrpo train"], "--run-dir", run]) == 0
    model = (folder / "RUN" / "model").rename(folder / "DIR")
    # What GSM8K's files and MATH-500's have, in one.
    row = {"answer": "$5$ #### 5", "solution": "\\boxed{5}", "subject": "Algebra", "level": 1}
    for name in ("train.jsonl", "test.jsonl"):
        texts = [f"{name}: {n} and {5 - n}?" for n in range(8)]
        lines = [{**row, "question": x, "problem": x, "unique_id": x} for x in texts]
        (model / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.fixture
def here(place, tmp_path, monkeypatch):
    """A page's own folder, in which all of `place` is linked."""
    for path in place.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OGRPO_CACHE_DIR", str(place / "cache"))
    monkeypatch.setattr("ogrpo.run.main.make_parts", make_parts_again)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("page", sorted({block.page for block in SHELL}))
def test_commands_run(page, here):
    for block in SHELL:
        if block.page == page:
            for words in block.commands:
                small = LITTLE[kind_of(words)]
                ours = words[0] == "ogrpo"
                program = main if ours else importlib.import_module(words[2]).main
                assert program([*words[1 if ours else 3 :], *small]) == 0, (str(block), words)


@pytest.mark.slow
@pytest.mark.parametrize("block", TRAINING, ids=str)
def test_python_that_trains_runs(block, here, monkeypatch):
    made = []

    def trainer(**options):
        made.append(ogrpo.run.api.Trainer(**{**SETTINGS, **options}))
        return made[0]

    monkeypatch.setattr(ogrpo, "Trainer", trainer)
    task = ogrpo.Task.from_iterable(ROWS, rewards=[even_length])
    exec(compile(block.text, str(block), "exec"), {"ogrpo": ogrpo, "task": task})
    assert [one.result.records[-1]["step"] for one in made] == [SETTINGS["schedule"].steps]
