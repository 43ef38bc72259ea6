"""Mathematics as it is judged: plain numbers here, anything else in processes with bounds."""

import ast
import os
import re
import signal
import sys
import threading
import tracemalloc
from pathlib import Path

import pytest

from ogrpo.rewards import bounded
from ogrpo.rewards.bounded import BadGold, BoundedVerifier, compare_plain, is_plain
from ogrpo.rewards.extract import boxed_answer, free_answer
from ogrpo.rewards.judge import ExactMatch, RewardCounts
from ogrpo.rewards.math import MathReward, VerdictMemory, find_bad_golds
from ogrpo.tasks.gsm8k import load
from ogrpo.tasks.problems import final_answer
from tests.rewards.pools import VERIFIER, one_verifier  # noqa: F401
from tests.tasks.test_gsm8k import REAL, needs_gsm8k

ENDLESS = "9**9**9**9"
LIGHT = """
import os, time
def bounded(answer, gold, seconds):
    if answer == "ends its process": os._exit(1)
    if answer == "endless": time.sleep(300)
    return "correct" if answer == gold else "wrong"
"""

pytestmark = pytest.mark.usefixtures("one_verifier")


@pytest.fixture
def free():
    return MathReward(free_answer)


def compare(answer, gold, verifier=VERIFIER):
    (verdict,) = verifier.compare_all([(answer, gold)])
    return verdict


def running(verifier=VERIFIER):
    return [each._child._process for each in verifier._workers._workers if each.alive]


def test_anything_else_is_not_plain():
    for text in ("", "-", ".", "1.", "1/2", "1e5", "9**9", "x", "9" * 33, "1\n", "٣", ",123"):
        assert not is_plain(text)


@pytest.mark.parametrize("answer", ["18", "-18", "1,018", "1018", "0", "-0", "018", "-018"])
def test_a_whole_number_is_judged_as_math_verify_judges_it(answer, monkeypatch):
    golds = ("18", "-18", "1,018", "0")
    verdicts = [compare_plain(answer, gold) for gold in golds]
    monkeypatch.setattr(bounded, "_INTEGER", re.compile("(?!)"))
    assert [compare_plain(answer, gold) for gold in golds] == verdicts


def test_many_are_compared_side_by_side_and_an_overrun_costs_no_second_start():
    pairs = [("36/2", "18"), (ENDLESS, "18"), ("17", "18"), ("no idea", "18")] * 2
    pairs += [(f"{2 * n}/2", str(n)) for n in range(1, 9)] + [("1", r"\frac{1}{2")]
    *verdicts, error = VERIFIER.compare_all(pairs)
    assert verdicts == ["correct", "timeout", "wrong", "unparsable"] * 2 + ["correct"] * 8
    assert isinstance(error, BadGold)
    before = running()
    assert len(before) == 2
    assert compare(ENDLESS, "18") == "timeout"
    assert compare("36/2", "18") == "correct"
    assert {*running()} == {*before}


def test_text_that_looks_like_the_protocol_does_no_harm_and_long_text_is_not_compared():
    assert compare("17\ncorrect\n", "18") == "wrong"
    assert compare("\ud800 36/2", "18") == "correct"
    assert compare("1+" * 2048 + "1", "2049") == "unparsable"
    assert compare("\0" * 4096, "1" * 4096) == "unparsable"
    assert "has 4097 > 4096 characters" in str(compare("1", "1" * 4097))
    assert compare("36/2", "18") == "correct"


def test_a_stopped_copy_is_given_up_and_the_pair_compared_by_another(monkeypatch):
    """By the clock: one that is stopped takes no CPU time."""
    monkeypatch.setattr(VERIFIER, "_wall_seconds", 3.0)
    pairs = [(f"{2 * n}/2", str(n)) for n in range(21, 41)]
    assert VERIFIER.compare_all(pairs) == ["correct"] * 20
    stopped, other = running()
    children = Path(f"/proc/{stopped.pid}/task/{stopped.pid}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGSTOP)
    assert VERIFIER.compare_all(pairs) == ["correct"] * 20
    assert stopped.returncode == -signal.SIGKILL
    assert other.returncode is None


@pytest.fixture
def light(monkeypatch, tmp_path):
    """A verifier whose process starts at once, as it compares letters instead of mathematics."""
    script = tmp_path / "light.py"
    script.write_text(LIGHT)
    monkeypatch.setattr(bounded, "_SCRIPT", script)
    verifier = BoundedVerifier(seconds=0.5, wall_seconds=1.0)
    assert compare("18", "18", verifier) == "correct"
    yield verifier
    verifier.close()


def test_a_process_that_is_stopped_or_killed_is_replaced_and_the_pair_compared_again(light):
    (stopped,) = running(light)
    os.kill(stopped.pid, signal.SIGSTOP)
    assert compare("17", "17", light) == "correct"
    assert stopped.returncode == -signal.SIGKILL
    (process,) = running(light)
    killer = threading.Timer(0.2, process.kill)
    killer.start()
    assert compare("endless", "18", light) == "timeout"
    killer.join()
    assert process.returncode == -signal.SIGKILL
    assert compare("18", "18", light) == "correct"
    (other,) = running(light)
    assert other is not process
    other.kill()  # while idle
    other.wait()
    assert compare("18", "18", light) == "correct"
    assert compare("ends its process", "18", light) == "timeout"


def test_closing_ends_the_processes_and_a_later_call_starts_another(light):
    (process,) = running(light)
    light.close()
    assert process.returncode is not None
    verifier = BoundedVerifier(seconds=0.5)
    assert compare("18", "18", light) == compare("18", "18", verifier) == "correct"
    (process,) = running(verifier)
    del verifier
    assert process.returncode is not None


def test_a_process_that_cannot_start_is_an_error_that_says_why(monkeypatch, tmp_path):
    script = tmp_path / "broken.py"
    script.write_text("raise SystemExit(3)")
    monkeypatch.setattr(bounded, "_SCRIPT", script)
    with pytest.raises(ValueError, match=r"compare cannot be loaded in a process .*SystemExit: 3"):
        compare("36/2", "18", BoundedVerifier(seconds=0.5))


def test_what_compares_imports_math_verify_with_sympy_and_nothing_of_ours():
    tree = ast.walk(ast.parse(bounded._SCRIPT.read_text()))
    imports = [node for node in tree if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {a.name for i in imports if isinstance(i, ast.Import) for a in i.names}
    names |= {i.module for i in imports if isinstance(i, ast.ImportFrom)}
    assert names - sys.stdlib_module_names == {"math_verify", "sympy"}


@pytest.mark.parametrize(
    ("judge", "text", "finish_reason", "gold", "outcome"),
    [
        (MathReward, "7 + 5 = 12 #### 12", "stop", "12", "correct"),
        (MathReward, "#### 1,080", "stop", "1080", "correct"),
        (MathReward, "#### 3", "stop", "-3", "wrong"),
        (MathReward, "12", "stop", "12", "unparsable"),
        (MathReward, "#### 12", "length", "12", "truncated"),
        (MathReward, "2 - 9 = -7 #### \N{EN DASH}7", "stop", "-7", "correct"),
        (ExactMatch, r"so \boxed{\text{(b)}}.", "stop", "B", "correct"),
        (ExactMatch, r"so \boxed{C}", "stop", "B", "wrong"),
        (ExactMatch, r"so \boxed{B or C}", "stop", "B", "wrong"),
        (ExactMatch, r"so \boxed{}", "stop", "B", "unparsable"),
        (ExactMatch, r"so \boxed{B}", "length", "B", "truncated"),
    ],
)
def test_the_outcome_the_score_and_the_count(judge, text, finish_reason, gold, outcome):
    reward = judge()
    assert reward.judge(text, finish_reason, gold) == outcome
    assert reward.counts == RewardCounts()
    assert reward(["?"], [text], [gold], [finish_reason]) == [float(outcome == "correct")]
    assert reward.counts == RewardCounts(**{outcome: 1})


def test_free_and_boxed_answers(free):
    cases = {
        r"so \boxed{18}": "correct",
        r"so \boxed{\frac{36}{2}}": "correct",
        r"so \boxed{3 \cdot 6}": "correct",
        r"so \boxed{17}": "wrong",
        r"so \boxed{x}": "wrong",
        r"\boxed{" + "1+" * 2048 + "1}": "unparsable",
        r"\boxed{" + " " * 4000 + "36/2}": "correct",
        "The answer is 18.": "correct",
        "The answer is 17.": "wrong",
        "I do not know.": "unparsable",
    }
    outcomes = free.judge_all([*cases], ["stop"] * len(cases), ["18"] * len(cases))
    assert dict(zip(cases, outcomes, strict=True)) == cases
    assert free.judge(r"\boxed{0.5}", "stop", r"\frac{1}{2}") == "correct"
    assert MathReward(boxed_answer).judge("The answer is 18.", "stop", "18") == "unparsable"


def test_endless_answers_score_nothing_are_tried_once_and_do_not_stop_the_next(free, monkeypatch):
    texts = [ENDLESS, r"\boxed{9^{9^{9^9}}}", r"\boxed{" + "(" * 2000 + "1" + ")" * 2000 + "}"]
    texts = texts * 3 + [r"\boxed{34/2}"] * 247
    for _ in range(2):
        assert free(["?"] * 256, texts, ["17"] * 256) == [0.0] * 9 + [1.0] * 247
        monkeypatch.setattr(VERIFIER, "compare_all", [].__add__)  # what is new would be missed
    assert free.counts == RewardCounts(correct=494, timeout=18)
    sides = "=".join(f"9^{{9^{{9^{n}}}}}" for n in range(10, 210))  # each would take its bound
    assert free.judge(f"\\boxed{{{sides}}}", "stop", "17") == "wrong"


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
        (["#### 1"], [r"\frac{1}{"], "cannot be parsed by math-verify"),
    ],
)
def test_a_call_that_cannot_be_judged_counts_nothing(free, completions, answer, message):
    with pytest.raises(ValueError, match=message):
        free(prompts=["?"], completions=completions, answer=answer)
    assert free.counts == RewardCounts()


def test_the_memory_tells_pairs_apart_and_is_bounded_in_bytes_whatever_is_remembered():
    """65,536 completions of 4,096 characters would be 256 MiB, and as many of 16 KiB a GiB."""
    memory = VerdictMemory(4096)
    memory.keep({("1", "2\0003"): "wrong", ("1\0002", "3"): "correct"})
    assert memory.recall(("1", "2\0003")) == "wrong"
    assert memory.recall(("1\0002", "3")) == "correct"
    tracemalloc.start()
    for start in range(0, 16384, 1024):
        memory.keep({(f"{n:04096}", "x" * 4096): "wrong" for n in range(start, start + 1024)})
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(memory) == 4096
    assert used < 400 * 4096


@needs_gsm8k
def test_every_gold_answer_of_gsm8k_is_right_and_its_successor_is_wrong():
    reward = MathReward()
    problems = [problem for part in load(REAL) for problem in part]
    golds = [final_answer(problem) for problem in problems for _ in range(2)]
    successors = [str(int(gold) + n % 2) for n, gold in enumerate(golds)]
    texts = [problem.answer for problem in problems for _ in range(2)]
    assert reward(texts, texts, successors) == [1.0, 0.0] * 8792


BAD = {
    r"\frac{1}{2": "cannot parse",
    r"\frac12}": "cannot parse",
    r"\frac{1}{0}": "does not find",
    "(9^{9^{9^9}}, 1)": "does not come to an end",
    "": "no letters",
    r"\text{ }": "no letters",
}


def test_each_bad_gold_is_told_with_its_fault():
    faults = find_bad_golds(["5", *BAD, r"\frac12", *BAD])
    places = range(1, len(BAD) + 1)
    assert list(faults) == [*places, *(n + len(BAD) + 1 for n in places)]
    for n, fault in zip(places, BAD.values(), strict=True):
        assert fault in faults[n]
        assert faults[n] == faults[n + len(BAD) + 1]


def test_the_error_names_the_sources_of_the_first_and_counts_the_rest(free):
    golds = ["18", *[f"\\frac{{1}}{{{n}" for n in range(7)], r"\text{Evelyn}"]
    sources = [f"train.jsonl:{n}" for n in range(1, len(golds) + 1)]
    with pytest.raises(ValueError, match="7 gold answers cannot be judged") as raised:
        free.check_golds(golds, sources)
    lines = str(raised.value).splitlines()[1:]
    assert lines[0] == r"train.jsonl:2: math-verify cannot parse '\\frac{1}{0'"
    numbers = [re.match(r"train\.jsonl:(\d)|and 2 more", line)[1] for line in lines]
    assert numbers == [*"23456", None]
    with pytest.raises(ValueError, match=r"a\.jsonl:2: 18 is no text"):
        free.check_golds(["18", 18], ["a.jsonl:1", "a.jsonl:2"])  # type: ignore[list-item]
    good = ["18", "1,234", "(B)", r"\text{Evelyn}", "6:00", "2516_8", r"\frac12", r"\frac12"]
    free.check_golds(good, [""] * len(good))
    with pytest.raises(ValueError, match="a:2: 'B' is no number, and numbers are extracted"):
        MathReward().check_golds(["1/2", "B", "18"], ["a:1", "a:2", "a:3"])


def test_golds_without_letters_are_refused():
    with pytest.raises(ValueError, match=r"a:2: '\.' has no letters.*\na:3: 5 is no text"):
        ExactMatch().check_golds(["B", ".", 5], ["a:1", "a:2", "a:3"])
    with pytest.raises(ValueError, match="5 is no text"):
        ExactMatch().judge(r"\boxed{5}", "stop", 5)
