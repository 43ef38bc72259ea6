"""The smoke table tells what fell below its start and what a method said when it was refused."""

from benchmarks.algorithms import SCORES, table


def row(name, seed, start, end):
    scores = {f"{when} {key}": x for when, x in (("start", start), ("end", end)) for key in SCORES}
    return {"algorithm": name, "seed": seed, "steps": 60, **scores, "cpu_seconds": 1.0}


def test_the_table_has_means_over_seeds_and_names_what_fell():
    rows = [row("grpo", 0, 0.3, 0.5), row("oapl", 0, 0.3, 0.1), row("grpo", 1, 0.3, 0.7)]
    rows += [{"algorithm": "dpo", "seed": 0, "steps": 60, "ended": "ValueError: no pairs"}]
    lines = table(rows)[2:]
    assert lines[0] == "| `grpo` | 0.300 | 0.600 | 0.300 | 0.600 | 2 |  |"
    assert lines[1].endswith("| 1 | below its start |")
    assert lines[2].endswith("| 1 | ValueError: no pairs |")
