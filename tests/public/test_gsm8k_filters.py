"""The lm-evaluation-harness's two filters for GSM8K and our judge, on the same completions.

The patterns and the texts to ignore are read from the harness's own files. The completions are
GSM8K's solutions, written in the ways that models end them.
"""

import json
import re
from pathlib import Path

import yaml

from ogrpo.rewards.math import MathReward

HERE = Path(__file__).parent / "lm_evaluation_harness"
HEAD = HERE / "gsm8k_test_head.jsonl"

# How the solution ends ({n} is the gold answer, {m} one more), and who calls it right: the filters
# "strict-match" and "flexible-extract", and we.
ENDINGS = {
    "#### {n}": (1, 1, 1),
    "#### {m}": (0, 0, 0),
    "#### {n}.": (1, 1, 1),
    "#### -{n}": (0, 0, 0),
    "#### {n} dollars": (1, 1, 1),
    "#### ${n}": (0, 1, 1),  # strict-match wants a digit behind the marker
    "####{n}": (0, 1, 1),  # and a space before it
    "#### **{n}**": (0, 1, 1),
    "#### {n}.0": (0, 0, 1),  # a number is no text
    "#### -${n}": (0, 0, 0),
    "#### - {n}": (0, 1, 0),  # flexible-extract leaves out a minus that stands apart
    "#### \N{EN DASH}{n}": (0, 1, 0),  # or is written as a dash
    "#### {n} or {m}": (1, 0, 0),  # whoever offers two answers has given none
    "#### {m} or {n}": (0, 1, 0),
    "#### {m} #### {n}": (0, 1, 1),  # the last marker counts
    "#### {n} #### {m}": (1, 0, 0),
    "The answer is {n}.": (0, 1, 0),  # no marker: GSM8K's protocol asks for it
    "#### {n} (see step 0)": (1, 0, 0),  # two numbers again
    "#### ": (0, None, 0),  # flexible-extract takes the last number of the working
}


def judged_by(filters, metric, text, target):
    """Returns the verdict of the harness's exact_match on a text after a filter."""
    (extract, _) = filters["filter"]
    groups = [[g for g in m.groups() if g] for m in re.finditer(extract["regex_pattern"], text)]
    matches = [group[0] for group in groups if group]
    picked = matches[extract.get("group_select", 0)].strip() if matches else "[invalid]"
    for ignored in metric["regexes_to_ignore"]:
        picked, target = re.sub(ignored, "", picked), re.sub(ignored, "", target)
    return picked.lower() == target.lower()


def solutions():
    """Working, gold answer and one more of each problem; of -5, 0 and 1 the endings are others."""
    for line in HEAD.read_text().splitlines():
        working, _, gold = json.loads(line)["answer"].rpartition("#### ")
        if (number := int(gold.replace(",", ""))) > 1:
            yield working, gold, number + 1


def test_the_endings_that_the_harness_and_we_call_right():
    task = yaml.safe_load((HERE / "gsm8k.yaml").read_text())
    (metric,), (strict, flexible) = task["metric_list"], task["filter_list"]
    assert (strict["name"], flexible["name"]) == ("strict-match", "flexible-extract")
    reward, endings = MathReward(), {}
    for ending in ENDINGS:
        verdicts = {"strict": set(), "flexible": set(), "ours": set()}
        for working, gold, more in solutions():
            text, target = working + ending.format(n=gold, m=more), f"{working}#### {gold}"
            verdicts["strict"].add(judged_by(strict, metric, text, target))
            verdicts["flexible"].add(judged_by(flexible, metric, text, target))
            verdicts["ours"].add(reward.judge(text, "stop", gold) == "correct")
        endings[ending] = tuple(x.pop() if len(x) == 1 else None for x in verdicts.values())
    assert endings == ENDINGS
