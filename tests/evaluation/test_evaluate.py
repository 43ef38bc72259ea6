import json
import threading
from itertools import chain, count
from math import nan
from types import SimpleNamespace

import numpy as np
import pytest

from ogrpo.evaluation import AnswerFile, answer_readers, sample_and_judge, summary
from ogrpo.evaluation.answers import to_line
from ogrpo.protocol import Sampling
from ogrpo.rewards.math import MathReward
from ogrpo.rewards.pool import RewardPool
from ogrpo.rewards.reward import Reward
from ogrpo.tasks import Example
from tests.evaluation.engines import decode, encode, holds, make_engine, record

SAMPLING = Sampling(temperature=1.0, max_tokens=6, group_size=3)
WAIT = 30  # seconds until a test gives up on a thread


def examples(count=7, prompt="how many?"):
    return [Example(prompt, {"answer": str(n)}, f"a.jsonl:{n + 1}") for n in range(count)]


def evaluate(engine=None, problems=None, *, score=holds, batch=2, **options):
    problems = examples() if problems is None else problems
    options |= {"encode": encode, "decode": decode, "sampling": SAMPLING, "score": score, "seed": 3}
    batches = sample_and_judge(engine or make_engine(), problems, batch=batch, **options)
    return chain.from_iterable(batches)


def test_each_answer_is_recorded_with_its_verdict():
    answers = list(evaluate())
    assert [(a.problem, a.sample) for a in answers] == [(n, g) for n in range(7) for g in range(3)]
    for answer in answers:
        assert answer.source == f"a.jsonl:{answer.problem + 1}"
        assert answer.text == decode(answer.token_ids)
        assert answer.truncated == (9 not in answer.token_ids)
        assert answer.failed == answer.text.startswith("0")
        right = str(answer.problem) in answer.text
        assert answer.failed or answer.values == {"holds": right} == {"holds": answer.reward}
    assert {a.failed for a in answers} == {a.truncated for a in answers} == {True, False}


@pytest.mark.parametrize(
    "options", [{"batch": 4}, {"batch": 100}, {"concurrent": 3}, {"judges": 1}]
)
def test_answers_do_not_depend_on_how_they_are_asked_for(options):
    assert [*map(to_line, evaluate(**options))] == [*map(to_line, evaluate())]


def test_chat_prompts_go_with_messages_of_the_assistant():
    seen = []

    def score(request):
        seen.append(request)
        return holds(request)

    chat = ({"role": "user", "content": "how many?"},)
    answers = list(evaluate(problems=examples(1, chat), score=score))
    (request,) = seen
    assert request.prompts == [[*chat]] * 3
    assert request.completions == [[{"role": "assistant", "content": a.text}] for a in answers]
    assert request.completion_ids == [[*a.token_ids] for a in answers]
    assert request.columns == {"answer": ["0"] * 3}


def length_of(completions, **columns):
    return [len(text) / 10 for text in completions]


def first_digit(completions, answer):
    """Right if the text begins with the answer; it knows no empty text."""
    return [float(text[0] == a) for text, a in zip(completions, answer, strict=True)]


def test_a_pool_of_rewards_judges():
    judge = MathReward(lambda text: text[:1] or None)
    rewards = [judge, first_digit, length_of]
    with RewardPool(rewards, processes=1, seconds=60, memory_gib=8) as pool:
        answers = list(evaluate(score=pool.score))
    assert {a.text == "" for a in answers} == {True, False}
    for answer in answers:
        assert answer.failed == (answer.text == "") == np.isnan(answer.values["first_digit"])
        assert answer.values["length_of"] == pytest.approx(len(answer.text) / 10)
        if not answer.truncated and not answer.failed:
            assert answer.values["math"] == answer.values["first_digit"]
    figures = summary(answers, by="math", answers_of=answer_readers([Reward("math", judge)]))
    assert figures["failed"] == sum(a.text == "" for a in answers)
    assert figures["maj@1"] == pytest.approx(figures["pass@1"])


def watched(on_call):
    """Returns an engine that tells the number of each call, from 1, before it answers."""
    engine, calls = make_engine(), count(1)

    def generate(prompts, sampling, seed):
        on_call(next(calls))
        return engine.generate(prompts, sampling, seed)

    return SimpleNamespace(generate=generate)


def test_a_batch_is_judged_while_the_next_is_sampled():
    sampling_second = threading.Event()

    def score(request):
        assert sampling_second.wait(WAIT)
        return holds(request)

    engine = watched(lambda call: sampling_second.set() if call == 2 else None)
    assert len(list(evaluate(engine, score=score))) == 21


def test_what_was_sampled_before_a_failure_is_not_lost():
    def fail(call):
        if call == 3:
            raise RuntimeError("the servers are gone")

    taken = []
    with pytest.raises(RuntimeError, match="servers are gone"):
        taken.extend(evaluate(watched(fail)))
    assert [a.problem for a in taken] == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3


def test_what_cannot_be_recorded_is_refused_before_sampling():
    engine = watched(lambda call: pytest.fail("it was sampled"))
    problems = examples()
    problems[4] = Example("what?", {"image": b"..."}, "a.jsonl:5")
    with pytest.raises(ValueError, match=r"a\.jsonl:5: column 'image' is b'...' \(bytes\)"):
        evaluate(engine, problems)
    for name in ("batch", "concurrent", "judges"):
        with pytest.raises(ValueError, match=f"{name} is 0"):
            evaluate(engine, **{name: 0})
    with pytest.raises(ValueError, match="no problem to evaluate on"):
        evaluate(engine, [])


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
