import os
import signal
import threading
from pathlib import Path

import pytest

from ogrpo.rewards.extract import boxed_answer, free_answer
from ogrpo.rewards.math import MathReward, RewardCounts
from ogrpo.tasks.gsm8k import load
from ogrpo.tasks.problems import final_answer

GSM8K = Path(os.environ.get("OGRPO_GSM8K", Path(__file__).parents[2] / "../shared/gsm8k"))
ENDLESS = [
    "9**9**9**9",
    r"\boxed{9^{9^{9^9}}}",
    r"\boxed{" + "(" * 10_000 + "1" + ")" * 10_000 + "}",
]


@pytest.fixture
def free():
    reward = MathReward(free_answer, seconds=0.5)
    yield reward
    reward.close()


@pytest.mark.parametrize(
    ("text", "finish_reason", "gold", "outcome"),
    [
        ("7 + 5 = 12 #### 12", "stop", "12", "correct"),
        ("#### 1,080", "stop", "1080", "correct"),
        ("#### 1080", "stop", "1,080", "correct"),
        ("#### 12.0", "stop", "12", "correct"),
        ("#### -3", "stop", "-3", "correct"),
        ("#### 3", "stop", "-3", "wrong"),
        ("7 + 5 = 12 #### 13", "stop", "12", "wrong"),
        ("12", "stop", "12", "unparsable"),
        ("#### 12 or 13", "stop", "12", "unparsable"),
        ("#### 9**9**9**9", "stop", "12", "unparsable"),
        ("#### 12", "length", "12", "truncated"),
        ("#### 12", "abort", "12", "truncated"),
    ],
)
def test_the_outcome_the_score_and_the_count(text, finish_reason, gold, outcome):
    reward = MathReward()
    assert reward.judge(text, finish_reason, gold) == outcome
    assert reward.counts == RewardCounts()
    assert reward(text, finish_reason, gold) == (1.0 if outcome == "correct" else 0.0)
    assert reward.counts == RewardCounts(**{outcome: 1})


def test_counts_are_taken_and_start_again():
    reward = MathReward()
    for answer, finish_reason in [("1", "stop"), ("2", "stop"), ("x", "stop"), ("1", "length")]:
        reward(f"#### {answer}", finish_reason, "1")
    counts = reward.take_counts()
    assert counts == RewardCounts(correct=1, wrong=1, unparsable=1, truncated=1)
    assert (counts.parsed, counts.total) == (2, 4)
    assert reward.take_counts().total == 0


def test_what_counts_apart_shares_everything_else():
    reward = MathReward()
    apart = reward.counting_apart()
    assert (reward("#### 1", "stop", "1"), apart("#### 1", "stop", "1")) == (1.0, 1.0)
    apart("#### 2", "stop", "1")
    assert (reward.counts, apart.counts) == (
        RewardCounts(correct=1), RewardCounts(correct=1, wrong=1)
    )  # fmt: skip
    assert reward._compare.cache_info().misses == 2


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        (r"so \boxed{18}", "correct"),
        (r"so \boxed{\frac{36}{2}}", "correct"),
        (r"so \boxed{3 \cdot 6}", "correct"),
        (r"so \boxed{17}", "wrong"),
        (r"so \boxed{x}", "wrong"),
        ("The answer is 18.", "correct"),
        ("The answer is 17.", "wrong"),
        ("I do not know.", "unparsable"),
    ],
)
def test_free_answers(free, text, outcome):
    assert free.judge(text, "stop", "18") == outcome


def test_a_boxed_answer_needs_its_box():
    reward = MathReward(boxed_answer)
    assert reward.judge("The answer is 18.", "stop", "18") == "unparsable"
    reward.close()


@pytest.mark.parametrize("text", ENDLESS, ids=lambda text: text[:12])
def test_an_endless_answer_scores_nothing_is_counted_and_does_not_stop_the_next(free, text):
    assert free(text, "stop", "18") == 0.0
    assert free(r"\boxed{36/2}", "stop", "18") == 1.0
    assert free.counts == RewardCounts(timeout=1, correct=1)


def test_a_gold_answer_may_be_an_expression(free):
    assert free.judge(r"\boxed{0.5}", "stop", r"\frac{1}{2}") == "correct"


def test_threads_share_a_reward(free):
    texts = ["9**9**9**9", r"\boxed{36/2}", r"\boxed{18}", r"\boxed{17}", "no idea"]

    def score() -> None:
        for text in texts:
            free(text, "stop", "18")

    threads = [threading.Thread(target=score) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert free.counts == RewardCounts(correct=6, wrong=3, unparsable=3, timeout=3)


def test_a_pair_is_compared_once():
    reward = MathReward()
    for _ in range(1000):
        reward("#### 12", "stop", "12")
    assert reward._compare.cache_info().misses == 1
    assert reward.counts.correct == 1000


def test_an_overrun_is_forgotten_and_the_pair_compared_again(free):
    assert free.judge(r"\boxed{36/2}", "stop", "19") == "wrong"  # starts the verifying process
    process = free._verifier._process
    process.send_signal(signal.SIGSTOP)  # it hangs, once, and is ended from outside
    ender = threading.Timer(0.2, process.kill)
    ender.start()
    assert free.judge(r"\boxed{36/2}", "stop", "18") == "timeout"
    ender.join()
    assert free.judge(r"\boxed{36/2}", "stop", "18") == "correct"


@pytest.mark.skipif(
    not (GSM8K / "train.jsonl").is_file(),
    reason=f"no GSM8K in {GSM8K}: set OGRPO_GSM8K to a folder with train.jsonl and test.jsonl",
)
def test_every_gold_answer_of_gsm8k_is_right_and_its_successor_is_wrong():
    reward = MathReward()
    problems = [problem for part in load(GSM8K) for problem in part]
    for problem in problems:
        gold = final_answer(problem)
        reward(problem.answer, "stop", gold)
        reward(problem.answer, "stop", str(int(gold) + 1))
    assert reward.counts == RewardCounts(correct=8792, wrong=8792)
