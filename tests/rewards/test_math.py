import os
import threading
import tracemalloc
from pathlib import Path

import pytest

from ogrpo.rewards.extract import boxed_answer, free_answer
from ogrpo.rewards.math import MathReward, RewardCounts, VerdictMemory
from ogrpo.tasks.gsm8k import load
from ogrpo.tasks.problems import final_answer

GSM8K = Path(os.environ.get("OGRPO_GSM8K", Path(__file__).parents[2] / "../shared/gsm8k"))
ENDLESS = [
    "9**9**9**9",
    r"\boxed{9^{9^{9^9}}}",
    r"\boxed{" + "(" * 2000 + "1" + ")" * 2000 + "}",
]


@pytest.fixture(scope="module")
def shared():
    reward = MathReward(free_answer, seconds=0.3, processes=2)
    yield reward
    reward.close()


@pytest.fixture
def free(shared):
    return shared.counting_apart()


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
        ("2 - 9 = -7 #### -$7", "stop", "-7", "correct"),
        ("2 - 9 = -7 #### - 7", "stop", "7", "wrong"),
        ("2 - 9 = -7 #### \N{EN DASH}7", "stop", "-7", "correct"),
    ],
)
def test_the_outcome_the_score_and_the_count(text, finish_reason, gold, outcome):
    reward = MathReward()
    assert reward.judge(text, finish_reason, gold) == outcome
    assert reward.counts == RewardCounts()
    assert reward.score(text, finish_reason, gold) == (1.0 if outcome == "correct" else 0.0)
    assert reward.counts == RewardCounts(**{outcome: 1})


def test_counts_are_taken_and_start_again():
    reward = MathReward()
    for answer, finish_reason in [("1", "stop"), ("2", "stop"), ("x", "stop"), ("1", "length")]:
        reward.score(f"#### {answer}", finish_reason, "1")
    counts = reward.take_counts()
    assert counts == RewardCounts(correct=1, wrong=1, unparsable=1, truncated=1)
    assert (counts.parsed, counts.total) == (2, 4)
    assert reward.take_counts().total == 0


def test_what_counts_apart_shares_everything_else():
    reward = MathReward()
    apart = reward.counting_apart()
    assert (reward.score("#### 1", "stop", "1"), apart.score("#### 1", "stop", "1")) == (1.0, 1.0)
    apart.score("#### 2", "stop", "1")
    assert (reward.counts, apart.counts) == (
        RewardCounts(correct=1), RewardCounts(correct=1, wrong=1)
    )  # fmt: skip
    assert len(reward._memory) == 2


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
    assert MathReward(boxed_answer).judge("The answer is 18.", "stop", "18") == "unparsable"


@pytest.mark.parametrize("text", ENDLESS, ids=lambda text: text[:12])
def test_an_endless_answer_scores_nothing_is_counted_and_does_not_stop_the_next(free, text):
    assert free.score(text, "stop", "18") == 0.0
    assert free.score(r"\boxed{36/2}", "stop", "18") == 1.0
    assert free.counts == RewardCounts(timeout=1, correct=1)


def test_a_gold_answer_may_be_an_expression(free):
    assert free.judge(r"\boxed{0.5}", "stop", r"\frac{1}{2}") == "correct"


def test_threads_share_a_reward(free):
    texts = ["9**9**9**9", r"\boxed{36/2}", r"\boxed{18}", r"\boxed{17}", "no idea"]

    def score() -> None:
        for text in texts:
            free.score(text, "stop", "18")

    threads = [threading.Thread(target=score) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert free.counts == RewardCounts(correct=6, wrong=3, unparsable=3, timeout=3)


def test_trl_calls_it_with_texts_or_chats():
    texts = ["#### 12", "#### 13", "#### 12"]
    chats = [[{"role": "assistant", "content": text}] for text in texts]
    for completions in (texts, chats):
        reward = MathReward()
        scores = reward(
            prompts=["?"] * 3, completions=completions, completion_ids=[[1]] * 3,
            answer=["12"] * 3, finish_reasons=["stop", "stop", "length"], trainer_state=None,
        )  # fmt: skip
        assert scores == [1.0, 0.0, 0.0]
        assert reward.counts == RewardCounts(correct=1, wrong=1, truncated=1)
        assert reward(prompts=["?"] * 3, completions=completions, answer=["12"] * 3)[2] == 1.0
    assert (reward.name, reward.__name__, reward.bounded) == ("math", "math", True)


@pytest.mark.parametrize(
    ("completions", "answer", "message"),
    [
        (["#### 1"], ["1", "2"], "math: 1 completions, 2 answers and 1 finish reasons"),
        ([[]], ["1"], "give a text, or messages"),
        ([[{"role": "assistant", "content": None}]], ["1"], "give a text, or messages"),
        (["#### 1"], [1], "the gold answer 1 is no text"),
        (["#### 1"], [r"\frac{1}{"], "cannot be parsed by math-verify"),
    ],
)
def test_a_call_that_cannot_be_judged_is_an_error_and_counts_nothing(
    free, completions, answer, message
):
    with pytest.raises(ValueError, match=message):
        free(prompts=["?"], completions=completions, answer=answer)
    assert free.counts == RewardCounts()


def test_overruns_in_a_batch_are_each_tried_once(free):
    texts = [f"{n}**9**9**9" for n in (6, 7)] * 3 + [r"\boxed{34/2}"] * 250
    for _ in range(2):
        assert free(["?"] * 256, texts, ["17"] * 256) == [0.0] * 6 + [1.0] * 250
    assert free.counts == RewardCounts(correct=500, timeout=12)
    free.close()
    assert free.judge(texts[0], "stop", "17") == "timeout"
    assert free._verifier.workers == []  # from memory


def test_a_pair_is_compared_once_and_the_oldest_forgotten():
    reward = MathReward(cache_size=2)
    for answer in ("12", "13", "12", "14", "12"):
        reward.score(f"#### {answer}", "stop", "12")
    assert len(reward._memory) == 2
    assert reward._memory.recall(("12", "12")) == "correct"
    assert reward._memory.recall(("13", "12")) is None
    assert reward.counts == RewardCounts(correct=3, wrong=2)


def test_the_memory_tells_pairs_apart_and_holds_no_text():
    memory = VerdictMemory(10)
    memory.keep(
        {("1", "2\0003"): "wrong", ("1\0002", "3"): "correct", ("x" * 4096, "y"): "timeout"}
    )
    assert memory.recall(("1", "2\0003")) == "wrong"
    assert memory.recall(("1\0002", "3")) == "correct"
    assert all(len(key) == 16 for key in memory._verdicts)


def test_the_memory_is_bounded_in_bytes_whatever_is_remembered():
    """65,536 completions of 4,096 characters would be 256 MiB, and as many of 16 KiB a GiB."""
    memory = VerdictMemory(4096)
    tracemalloc.start()
    for start in range(0, 16384, 1024):
        memory.keep({(f"{n:04096}", "x" * 4096): "wrong" for n in range(start, start + 1024)})
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(memory) == 4096
    assert used < 400 * 4096


def test_a_too_long_answer_is_unparsable(free):
    assert free.judge(r"\boxed{" + "1+" * 2048 + "1}", "stop", "2049") == "unparsable"
    assert free.judge(r"\boxed{" + " " * 4000 + "36/2}", "stop", "18") == "correct"


def test_a_process_that_died_costs_no_completion_its_reward(free):
    texts = [rf"\boxed{{{2 * n}/2}}" for n in (23, 24)]
    assert free(["?"] * 2, texts, ["23", "24"]) == [1.0, 1.0]
    for worker in free._verifier.workers:
        worker._child._process.kill()
    assert free(["?"] * 2, texts, ["24", "23"]) == [0.0, 0.0]
    assert free.counts == RewardCounts(correct=2, wrong=2)


def test_golds_are_checked_before_a_run(free):
    free.check_golds(["18", r"\frac12"], ["a:1", "a:2"])
    with pytest.raises(ValueError, match=r"a:2: math-verify cannot parse"):
        free.check_golds(["18", r"\frac{1"], ["a:1", "a:2"])


@pytest.mark.skipif(
    not (GSM8K / "train.jsonl").is_file(),
    reason=f"no GSM8K in {GSM8K}: set OGRPO_GSM8K to a folder with train.jsonl and test.jsonl",
)
def test_every_gold_answer_of_gsm8k_is_right_and_its_successor_is_wrong():
    reward = MathReward()
    problems = [problem for part in load(GSM8K) for problem in part]
    for problem in problems:
        gold = final_answer(problem)
        reward.score(problem.answer, "stop", gold)
        reward.score(problem.answer, "stop", str(int(gold) + 1))
    assert reward.counts == RewardCounts(correct=8792, wrong=8792)
