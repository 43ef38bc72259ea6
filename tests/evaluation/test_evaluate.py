import threading
from types import SimpleNamespace

import numpy as np
import pytest

from ogrpo.evaluation import AnswerFile, rescore, sample_and_judge
from ogrpo.evaluation.answers import to_line
from ogrpo.rollout.protocol import Sampling
from tests.evaluation.engines import decode, encode, holds, make_engine

SAMPLING = Sampling(temperature=1.0, max_tokens=6, group_size=3)
WAIT = 30  # seconds until a test gives up on a thread


def examples(count=7, prompt="how many?"):
    return [
        SimpleNamespace(prompt=prompt, columns={"answer": str(n)}, source=f"a.jsonl:{n + 1}")
        for n in range(count)
    ]


def evaluate(engine=None, problems=None, *, score=holds, batch=2, **options):
    return sample_and_judge(
        engine or make_engine(),
        problems or examples(),
        encode=encode,
        decode=decode,
        sampling=SAMPLING,
        score=score,
        seed=3,
        batch=batch,
        **options,
    )


def flat(chunks):
    return [answer for chunk in chunks for answer in chunk]


def test_each_answer_is_recorded_with_its_verdict():
    answers = flat(evaluate())
    assert [(a.problem, a.sample) for a in answers] == [(n, g) for n in range(7) for g in range(3)]
    for answer in answers:
        assert answer.source == f"a.jsonl:{answer.problem + 1}"
        assert answer.text == decode(answer.token_ids)
        assert answer.truncated == (9 not in answer.token_ids)
        assert answer.failed == answer.text.startswith("0")
        right = str(answer.problem) in answer.text
        assert answer.failed or answer.values == {"holds": right} == {"holds": answer.reward}
    assert {a.failed for a in answers} == {a.truncated for a in answers} == {True, False}


@pytest.mark.parametrize("options", [{"batch": 4}, {"batch": 100}, {"concurrent": 3}])
def test_answers_do_not_depend_on_how_they_are_asked_for(options):
    expected = [to_line(a) for a in flat(evaluate())]
    assert [to_line(a) for a in flat(evaluate(**options))] == expected


def test_they_are_what_one_call_of_the_engine_draws():
    groups = make_engine().generate([encode(e) for e in examples()], SAMPLING, 3)
    drawn = [c.token_ids.tolist() for group in groups for c in group.completions]
    assert [list(a.token_ids) for a in flat(evaluate())] == drawn


def test_chat_prompts_go_with_messages_of_the_assistant():
    seen = []

    def score(**asked):
        seen.append(asked)
        return holds(**asked)

    chat = ({"role": "user", "content": "how many?"},)
    answers = flat(evaluate(problems=examples(2, chat), score=score))
    (asked,) = seen
    assert asked["prompts"] == [[*chat]] * 6
    assert asked["completions"] == [[{"role": "assistant", "content": a.text}] for a in answers]
    assert asked["completion_ids"] == [[*a.token_ids] for a in answers]
    assert asked["columns"] == {"answer": ["0"] * 3 + ["1"] * 3}


class Watched:
    """An engine that says when each call begins, and does what a test asks on the way."""

    def __init__(self, on_call):
        self.engine, self.on_call, self.calls = make_engine(), on_call, 0
        self.lock = threading.Lock()

    def generate(self, prompts, sampling, seed):
        with self.lock:
            self.calls += 1
            call = self.calls
        self.on_call(call)
        return self.engine.generate(prompts, sampling, seed)


def test_a_batch_is_judged_while_the_next_is_sampled():
    sampling_second = threading.Event()

    def score(**asked):
        assert sampling_second.wait(WAIT)
        return holds(**asked)

    engine = Watched(lambda call: sampling_second.set() if call == 2 else None)
    assert len(flat(evaluate(engine, score=score))) == 21


def test_batches_are_sampled_at_once_if_asked_for():
    together = threading.Barrier(3, timeout=WAIT)
    engine = Watched(lambda call: together.wait() if call <= 3 else None)
    assert len(flat(evaluate(engine, concurrent=3))) == 21


def test_what_was_sampled_before_a_failure_is_not_lost():
    def fail(call):
        if call == 3:
            raise RuntimeError("the servers are gone")

    taken = []
    with pytest.raises(RuntimeError, match="servers are gone"):
        taken.extend(answer for chunk in evaluate(Watched(fail)) for answer in chunk)
    assert [a.problem for a in taken] == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3


def test_a_caller_that_stops_listening_ends_it():
    engine = Watched(lambda call: None)
    chunks = evaluate(engine)
    next(chunks)
    chunks.close()
    assert engine.calls <= 3


def test_what_cannot_be_recorded_is_refused_before_sampling():
    engine = Watched(lambda call: None)
    problems = examples()
    problems[4].columns["image"] = b"..."
    with pytest.raises(ValueError, match=r"a\.jsonl:5: column 'image' is b'...' \(bytes\)"):
        evaluate(engine, problems)
    with pytest.raises(ValueError, match="batch is 0"):
        evaluate(engine, batch=0)
    with pytest.raises(ValueError, match="no problem to evaluate on"):
        sample_and_judge(
            engine,
            [],
            encode=encode,
            decode=decode,
            sampling=SAMPLING,
            score=holds,
            seed=0,
            batch=1,
        )
    assert engine.calls == 0


def test_a_judge_that_loses_verdicts_is_refused():
    def score(**asked):
        found = holds(**asked)
        return SimpleNamespace(rewards=found.rewards[1:], values=found.values, failed=found.failed)

    with pytest.raises(ValueError, match=r"6 answers were judged and \[5, 6, 6\] verdicts"):
        flat(evaluate(score=score))


@pytest.fixture
def answers_file(tmp_path):
    with AnswerFile(tmp_path / "a.jsonl") as file:
        for chunk in evaluate():
            file.write(chunk)
    return file.path


@pytest.mark.parametrize("batch", [1, 32])
def test_judged_again_by_the_same_rewards_nothing_changes(answers_file, batch):
    before = answers_file.read_bytes()
    done = rescore(answers_file, holds, batch=batch)
    assert done.changed == []
    assert b"".join(to_line(a) for a in done.answers) == before == answers_file.read_bytes()
    assert str(done) == "0 of 21 verdicts changed"


def test_verdicts_that_change_are_told(answers_file):
    def stricter(**asked):
        found = holds(**asked)
        stopped = np.array([reason == "stop" for reason in asked["finish_reasons"]])
        values = {"holds": found.values["holds"] * stopped, "new": stopped * 1.0}
        return SimpleNamespace(rewards=found.rewards, values=values, failed=found.failed)

    done = rescore(answers_file, stricter)
    expected = [a for a in flat(evaluate()) if a.truncated and a.values["holds"] == 1]
    assert expected
    assert [old.token_ids for old, _ in done.changed] == [a.token_ids for a in expected]
    assert {new.values["holds"] for _, new in done.changed} == {0.0}


def test_an_answer_that_fails_now_has_changed(answers_file):
    def never(**asked):
        found = holds(**asked)
        everything = np.ones_like(found.failed)
        return SimpleNamespace(
            rewards=found.rewards,
            values={"holds": found.values["holds"] * np.nan},
            failed=everything,
        )

    assert len(rescore(answers_file, never).changed) == sum(not a.failed for a in flat(evaluate()))


def test_rewards_of_other_names_are_not_compared(answers_file):
    def renamed(**asked):
        found = holds(**asked)
        values = {"other": found.values["holds"]}
        return SimpleNamespace(rewards=found.rewards, values=values, failed=found.failed)

    with pytest.raises(ValueError, match=r"judged by \['holds'\].*\['other'\]: nothing can be"):
        rescore(answers_file, renamed)
