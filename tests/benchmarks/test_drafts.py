"""What the page's table of drafts is made of."""

import json
from pathlib import Path

from benchmarks.drafts import table


def test_the_table_has_the_means_of_each_age_and_kind():
    means = {"kept": 0.9, "whole": 0.8, "steps": 10.0, "steps anew": 13.0}
    means |= {
        "seconds": 0.03,
        "seconds scoring": 0.02,
        "seconds anew": 0.01,
        "surplus": 0.02,
        "error": 0.04,
    }
    first = {"seed": 0, "step": 30, "lag": 2, "drafts": "fresh", "completions": 1280, **means}
    second = {**first, "kept": 0.7, "seconds": 0.05, "surplus": -0.04, "error": 0.03}
    other = {**first, "drafts": "trained on", "lag": 10}
    fresh, trained = table([first, other, second]).splitlines()[2:]
    assert fresh == "| fresh | 2 | 0.80 | 0.80 | 10.0, 13.0 | 40, 10 | -0.010 ± 0.049 |"
    assert trained == "| trained on | 10 | 0.90 | 0.80 | 10.0, 13.0 | 30, 10 | +0.020 ± 0.078 |"


def test_the_page_shows_the_rows_that_are_kept():
    root = Path(__file__).parents[2]
    lines = (root / "benchmarks/drafts.jsonl").read_text().splitlines()
    assert table([json.loads(line) for line in lines]) in (root / "docs/reuse.md").read_text()
