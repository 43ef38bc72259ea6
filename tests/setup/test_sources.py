"""Options of tasks, rewards, evaluation and kernels: each acts, or is refused where it would not."""

import io
from contextlib import closing
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from ogrpo.cli.eval import evaluate
from ogrpo.cli.options import parse_eval
from ogrpo.config.schedule import Schedule
from ogrpo.config.train import Data, Evaluation, Judging, Model, Rollout, TrainConfig, WarmStart
from ogrpo.config.update import Kernels
from ogrpo.data.tokenizer import train_bpe
from ogrpo.policy import init_params
from ogrpo.protocol import Completion, Group
from ogrpo.rollout.embedded import EmbeddedEngine
from ogrpo.setup.build import find_devices, make_parts
from ogrpo.setup.find_task import check_sources, find_task
from ogrpo.setup.model import make_model, save_model, tiny_decoder
from ogrpo.setup.prepare import prepare
from ogrpo.tasks import Task
from tests.loop.walk import CHAT, SUMS, with_options
from tests.policy.tiny import ragged_batch
from tests.rewards.functions import equal
from tests.run.rewards import ODD, VARIED
from tests.tasks.test_official import write

SMALL = Schedule(prompts=2)
MADE = TrainConfig(task=SUMS, schedule=SMALL)


@pytest.fixture
def official(tmp_path):
    """GSM8K's files."""
    rows = [{"question": f"{n} + 1 ?", "answer": f"one more #### {n + 1}"} for n in range(12)]
    write(tmp_path / "train.jsonl", rows[:8])
    write(tmp_path / "test.jsonl", rows[8:])
    return str(tmp_path)


def judged(prepared, *texts):
    """Scores texts as answers to the first training prompt."""
    ids = [prepared.tokenizer.encode(text) for text in texts]
    made = [Completion(x, np.zeros(len(x), np.float32), 0, 1.0, "stop") for x in ids]
    (verdicts,) = prepared.judge.rewarded([0], [Group(prepared.prompts.train[0], tuple(made))])
    return verdicts


MATH = {"task": "math", "data.path": "x"}
REFUSED = [
    ({"task": SUMS, "data.path": "here"}, r"data\.path is here, .* where a named task's files are"),
    (
        {**MATH, "data.solution_column": "worked", "evaluation.task": SUMS},
        r"data\.solution-column is worked, .* give --task a file",
    ),
    ({**MATH, "data.heldout": "0.5"}, "data.heldout is 0.5, .* evaluated on prompts of its own"),
    (
        {"rewards": (ODD,), "reward.weights": (1.0, 2.0)},
        "reward.weights has 2 weights for 1 rewards",
    ),
    ({"evaluation.task": SUMS, "evaluation.path": "x"}, r"evaluation\.path is x"),
    (
        {"task": SUMS, "warm_start.demonstrations": 2},
        r"warm-start\.demonstrations is 2, .* worked solutions are imitated",
    ),
    (
        {"task": SUMS, "rewards": (ODD,), "reward.extraction": "boxed"},
        r"reward\.extraction is boxed, .* no answers are compared",
    ),
    ({"reward.call_seconds": 1.0}, r"reward\.call-seconds is 1\.0, .* bound their own time"),
    (
        {"task": CHAT, "data.prompt": "{question}!"},
        "data.prompt is .* those of 'chat' are messages",
    ),
    ({"task": SUMS, "data.heldout": "0"}, r"'sums' has no held-out problems, .* --data\.heldout"),
    ({"task": SUMS, "data.prompt": "Calculate."}, r"'Calculate\.' has no \{question\}"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_what_would_change_nothing_or_is_not_read_is_refused(options, message):
    config = with_options(TrainConfig(), options)
    with pytest.raises(ValueError, match=message):  # noqa: PT012 - the one or the other
        check_sources(config)
        find_task(config)


ACCEPTED = [
    TrainConfig(rewards=(ODD, VARIED), reward=Judging(weights=(1.0, 2.0))),
    TrainConfig(task=SUMS, data=Data(heldout="3", limit=5, prompt_column="asked", prompt="{question}!")),
    TrainConfig(task=SUMS, model=Model(tokenizer_size=300), warm_start=WarmStart(steps=5)),
    TrainConfig(task="deepscaler", data=Data(path="x", heldout="0.1")),
    TrainConfig(task="math", data=Data(path="x"), evaluation=Evaluation(split="validation")),
    TrainConfig(evaluation=Evaluation(task="aime-24", path="x")),
    TrainConfig(rollout=Rollout(url=("http://a",)), evaluation=Evaluation(engine="embedded")),
]  # fmt: skip


@pytest.mark.parametrize("config", ACCEPTED)
def test_what_acts_is_accepted(config):
    check_sources(config)


def own_task():
    rows = [{"prompt": f"{n} + 1 =", "answer": str(n + 1)} for n in range(20)]
    return Task.from_iterable(rows, rewards=[equal])


def test_a_task_that_is_given_needs_no_finding():
    check_sources(TrainConfig(), own_task())
    for config, message in (
        (TrainConfig(rewards=(ODD,)), r"rewards is .*the task brings its own"),
        (TrainConfig(data=Data(train=50)), r"data\.train is 50"),
    ):
        with pytest.raises(ValueError, match=message):
            check_sources(config, own_task())


def test_prompts_are_put_once_wherever_they_come_from(official):
    template = "What is {question}"
    for config in (
        TrainConfig(task="gsm8k", data=Data(path=official, prompt=template), schedule=SMALL),
        TrainConfig(task=SUMS, data=Data(prompt=template), schedule=SMALL),
    ):
        with closing(prepare(config)) as prepared:
            texts = [prepared.tokenizer.decode(ids) for ids in prepared.prompts.train]
            assert all(text.count("What is") == 1 and text[-1] in "=?" for text in texts)
    mine = find_task(TrainConfig(data=Data(prompt=template)), own_task()).task
    assert mine.train[0].prompt.startswith("What is ")


def test_long_prompts_are_left_out_and_counted(tmp_path):
    file = tmp_path / "few.jsonl"
    rows = [{"prompt": f"{n} + 1 =" * (1 + n // 8), "answer": str(n + 1)} for n in range(10)]
    write(file, rows)
    config = replace(MADE, task=str(file), model=Model(random="tiny"))
    with closing(prepare(replace(config, data=Data(heldout="3", prompt_length=8)))) as prepared:
        assert sum(count for _, count in prepared.left_out) == 2
        assert len(prepared.prompts.train) + len(prepared.prompts.heldout) == 8
    with pytest.raises(ValueError, match=r"none of 7 prompts fits into data\.prompt-length = 2 t"):
        prepare(replace(config, data=Data(heldout="3", prompt_length=2)))


def test_answers_are_found_where_the_option_says(official):
    """By default where the task has them; the same for files, official ones and generated ones."""
    for config in (MADE, TrainConfig(task="gsm8k", data=Data(path=official), schedule=SMALL)):
        for extraction, expected in ((None, [1, 0]), ("marker", [1, 0]), ("boxed", [0, 1])):
            judging = replace(config, reward=Judging(extraction=extraction))
            with closing(prepare(judging)) as prepared:
                gold = find_task(judging).task.train[0].columns["answer"]
                verdicts = judged(prepared, f"#### {gold}", f"\\boxed{{{gold}}}")
                assert verdicts.rewards.tolist() == expected
    generated = find_task(TrainConfig(reward=Judging(extraction="boxed"))).task.rewards[0]
    assert generated.function(["?"], ["so \\boxed{7}"], answer=["7"]) == [1.0]


def test_comparisons_get_the_time_that_is_asked_for(official):
    for config in (TrainConfig(), MADE, TrainConfig(task="gsm8k", data=Data(path=official))):
        (reward,) = find_task(replace(config, reward=Judging(seconds=0.25))).task.rewards
        assert reward.function._verifier.seconds == 0.25


ENDLESS = """
import time
def endless(completions):
    time.sleep(60 if "1" in completions else 0)
    return [1.0] * len(completions)
def greedy(completions):
    return [float(bytearray(1 << 30)[0])] * len(completions)
"""


@pytest.fixture
def user_rewards(tmp_path):
    path = tmp_path / "user_rewards.py"
    path.write_text(ENDLESS)
    return path


def test_a_reward_that_overruns_is_ended_in_time(user_rewards):
    judging = Judging(call_seconds=0.5, processes=1)
    config = replace(MADE, rewards=(f"{user_rewards}:endless",), reward=judging)
    with closing(prepare(config)) as prepared:
        verdicts = judged(prepared, "2", "1")
    np.testing.assert_array_equal(verdicts.rewards, [1, np.nan])  # what failed is not judged
    assert np.isnan(verdicts.values["endless"]).tolist() == [False, True]
    assert "0.5" in verdicts.failures[0]


@pytest.mark.parametrize(("memory_gib", "fails"), [(0.5, True), (4.0, False)])
def test_a_reward_gets_the_memory_that_is_asked_for(user_rewards, memory_gib, fails):
    judging = Judging(memory_gib=memory_gib, processes=1)
    config = replace(MADE, rewards=(f"{user_rewards}:greedy",), reward=judging)
    with closing(prepare(config)) as prepared:
        assert bool(judged(prepared, "2").failures) == fails


TEMPLATE = """\
{% for m in messages %}{{ m.content }}{% endfor %}{% if mood is defined %} Be {{ mood }}.{% endif %}"""


def test_variables_reach_the_chat_template(tmp_path):
    tokenizer = train_bpe(["What is 1 + 2 = ? Be kind."], 300, chat_template=TEMPLATE)
    decoder = tiny_decoder(tokenizer)
    save_model(tmp_path, decoder, init_params(decoder, jax.random.key(0)), tokenizer)

    def first(*chat):
        config = replace(MADE, model=Model(path=tmp_path), data=Data(chat=chat))
        with closing(prepare(config)) as prepared:
            return prepared.tokenizer.decode(prepared.prompts.train[0])

    assert first("mood=kind") == f"{first()} Be kind."
    for chat, message in (
        ("mod=kind", r"data\.chat sets mod, .* template reads mood"),
        ("messages=[]", r"data\.chat sets messages"),
        ("mood", r"data\.chat is 'mood': give NAME=VALUE"),
    ):
        with pytest.raises(ValueError, match=message):
            first(chat)
    drawn = ("--samples=1", "--temperature=0", "--max-tokens=2")
    options = [f"--task={SUMS}", f"--model.path={tmp_path}", *drawn, "--data.chat=mod=kind"]
    with pytest.raises(ValueError, match=r"data\.chat sets mod, .* template reads mood"):
        evaluate(parse_eval(options))


def test_another_task_is_evaluated_on_from_its_files(official, tmp_path):
    config = replace(MADE, evaluation=Evaluation(task="gsm8k", path=official))
    task = find_task(config).task
    assert len(task.train) == 24  # nothing is cut off
    assert [e.columns["answer"] for e in task.heldout] == ["9", "10", "11", "12"]
    other = tmp_path / "other.jsonl"
    write(other, [{"prompt": "1 + 1 =", "answer": "2"}])
    columns = {"data.prompt_column": "prompt", "data.solution_column": "worked"}
    config = with_options(MADE, {**columns, "evaluation.task": str(other)})
    check_sources(config)
    task = find_task(config).task  # the other file needs no worked solutions
    assert (task.solutions, [e.columns for e in task.heldout]) == ("worked", [{"answer": "2"}])


@pytest.mark.parametrize("engine", ["rollout", "embedded"])
def test_the_trainers_own_sampler_can_evaluate(engine):
    options = {"model.random": "tiny", "rollout.url": ("http://a",), "evaluation.engine": engine}
    config = with_options(MADE, options)
    with closing(prepare(config)) as prepared:
        decoder = tiny_decoder(prepared.tokenizer)
        servers = make_parts(prepared.config, prepared, decoder).collection.engine  # in their place
        parts = make_parts(prepared.config, prepared, decoder, servers)
    assert parts.collection.engine is servers
    assert (parts.evaluator.engine is servers) == (engine == "rollout")
    assert isinstance(parts.evaluator.engine, EmbeddedEngine)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "shown"), [("auto", "reference"), ("chunked", "chunked")])
def test_a_run_says_which_kernels_it_uses_and_uses_them(name, shown):
    config = replace(MADE, model=Model(random="tiny"), kernels=Kernels(log_probs=name))
    console = Console(record=True, file=io.StringIO())
    with closing(prepare(config)) as prepared:
        decoder, params = make_model(prepared, console)
    text = console.export_text()
    assert "attention: blocked from 128 keys on, plain below" in text
    assert f"log-probs: {shown}" in text
    policy = find_devices(prepared.config, decoder).policy_fn
    program = str(jax.make_jaxpr(policy)(params, ragged_batch(decoder), jnp.float32(1)))
    assert ("_swept" in program) == (shown == "chunked")
