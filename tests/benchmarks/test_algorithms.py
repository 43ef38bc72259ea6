"""The smoke table tells what fell below its start and what a method said when it was refused."""

from pathlib import Path

import pytest

from benchmarks.algorithms import KEPT, REASONS, SCORES, missing, summary
from benchmarks.rows import add_row, read_rows
from ogrpo.core.algorithms import ALGORITHMS

ROOT = Path(__file__).parents[2]


def row(name, seed, start, end):
    scores = {f"{when} {key}": x for when, x in (("start", start), ("end", end)) for key in SCORES}
    return {"algorithm": name, "seed": seed, "steps": 60, **scores, "cpu_seconds": 1.0}


def test_the_table_has_means_over_seeds_and_names_what_fell():
    rows = [row("grpo", 0, 0.3, 0.5), row("oapl", 0, 0.3, 0.1), row("grpo", 1, 0.3, 0.7)]
    rows += [{"algorithm": "dpo", "seed": 0, "steps": 60, "ended": "ValueError: no pairs"}]
    lines = summary(rows)[2:]
    assert lines[0] == "| `grpo` | 0.300 | 0.600 | 0.300 | 0.600 | 2 | rises |"
    assert lines[1].endswith(f"| 1 | below its start: {REASONS['oapl']} |")
    assert lines[2].endswith("| 1 | ValueError: no pairs |")


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.xz"])
def test_rows_that_are_added_are_read_again(tmp_path, name):
    rows = [row("grpo", seed, 0.3, 0.5) for seed in (0, 1)]
    for each in rows:
        add_row(tmp_path / name, each)
    assert read_rows(tmp_path / name) == rows


def test_the_page_has_the_table_of_the_kept_rows_and_a_reason_for_each_fall():
    rows, page = read_rows(KEPT), (ROOT / "docs/algebra.md").read_text()
    lines = summary(rows)
    assert "\n".join(lines) in page
    assert "not looked into" not in page
    seen = {row["algorithm"] for row in rows}
    assert seen <= set(ALGORITHMS)
    lacking = ", ".join(f"`{name}`" for name in missing(rows))
    assert (f"Without runs of both seeds: {lacking}." in page) == bool(lacking)
    assert {row["steps"] for row in rows} == {60}
    fell = {line.split("`")[1] for line in lines if "below its start" in line}
    assert set(REASONS) <= fell | set(missing(rows))
