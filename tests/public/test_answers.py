"""The answers of other libraries' tests, judged by ours; what differs is told here, with the reason."""

import itertools
import json
import re
from pathlib import Path

import pytest

from ogrpo.rewards.bounded import BadGold
from ogrpo.rewards.extract import boxed_answer, free_answer
from ogrpo.rewards.math import MathReward

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent

MATH_VERIFY = {
    "a comma makes a list in a gold answer, and no decimals": ["all::test_number_extraction[6]"],
    "a formula over several lines is one": ["all::test_latex_notation[5]", "all::test_latex_notation[6]"],
    "decimals agree to six places, not to the two or four that these ask for": [
        "all::test_complex_math_expressions[7]",
        "all::test_complex_math_expressions[13]",
        "all::test_precision",
    ],
    "a box is the answer, whatever is said after it": ["all::test_math_extraction_additional_cases[17]"],
    "an interval is not compared with an inequality: an option, off here": ["all::test_set_rel_assymetry[2]"],
    "names of unknowns count: an option, on here": ["strict::test_strict_variable_comparison[1]"],
    "a gold answer whose box does not close is an error of the data": ["numina_cases::test_numina_cases[24]"],
    "1 - 1/e is not 1 + 1/e": ["yujianll::test_string_extraction[9]"],
}  # fmt: skip
TRL = {
    "a gold answer in words is compared as a text, and not left out": [
        "TestAccuracyReward.test_accuracy_reward_unparsable_gold[0]",
        "TestAccuracyReward.test_accuracy_reward_unparsable_gold[1]",
        "TestReasoningAccuracyReward.test_unparsable_gold_solution_yields_none_reward[0]",
        "TestCosineScaledReward.test_unparsable_gold_yields_none[0]",
    ],
}
AREAL = {
    "a gold answer in words is compared as a text, and no number is searched in it": [
        "TestMathVerifyWorkerTextWrappedAnswers.test_worker_text_embedded_fraction[0]",
        "TestMathVerifyWorkerTextWrappedAnswers.test_worker_text_embedded_latex_power[0]",
        "TestMathVerifyWorkerTextWrappedAnswers.test_worker_text_embedded_nested_expr[0]",
    ],
    "a gold answer that cannot be read is an error of the data, and not a wrong answer": [
        "TestMathVerifyWorkerTextWrappedAnswers.test_worker_text_embedded_sqrt[0]",
    ],
    "so is one that is no text": [
        "TestRewardEdgeCases.test_geometry3k_none_values[0]",
        "test_clevr_non_string_answer_scored_correctly[0]",
    ],
}


def cases(suite):
    return [json.loads(line) for line in (HERE / suite / "cases.jsonl").read_text().splitlines()]


def bracketed(text):
    """An extractor of one's own: the content of the last square brackets, or else the text."""
    matches = re.findall(r"\[([^\[\]]*)\]", text)
    return matches[-1] if matches else free_answer(text)


def extractor(suite, case):
    if suite == "areal" and case["reward"] not in ("gsm8k_reward_fn", "verify"):
        return bracketed
    return boxed_answer if suite == "trl" else free_answer


@pytest.fixture(scope="module")
def verifier():
    reward = MathReward(free_answer, seconds=5.0, processes=1)
    yield reward
    reward.close()


def judged(verifier, extract, case):
    reward = verifier.counting_apart()
    reward.extract = extract
    try:
        return reward.judge(case["pred"], "stop", case["gold"]) == "correct"
    except BadGold:
        return None


@pytest.mark.parametrize(
    ("suite", "number", "stated", "reasons"),
    [("math_verify", 270, 270, MATH_VERIFY), ("trl", 31, 31, TRL), ("areal", 71, 59, AREAL)],
)
def test_verdicts_differ_in_the_listed_cases(verifier, suite, number, stated, reasons):
    """No verdict is what TRL expects of some; AReaL's without one may come out as they like."""
    verdicts = [(case, judged(verifier, extractor(suite, case), case)) for case in cases(suite)]
    compared = [x for x in verdicts if suite != "areal" or x[0]["right"] is not None]
    assert (len(verdicts), len(compared)) == (number, stated)
    differing = sorted(case["id"] for case, right in compared if right != case["right"])
    assert differing == sorted(itertools.chain(*reasons.values()))
