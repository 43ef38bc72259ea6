"""The measurements as a markdown report."""

from benchmarks.reporting import Columns, Found, figures, heading, ratio_rows, spread, table

COLUMNS: Columns = {
    "tokens / CPU-s": lambda run: run["tokens"] / run["cpu"],
    "tokens / s": lambda run: run["tokens"] / run["wall"],
    "peak MiB": lambda run: run["peak"],
}


def report(found: Found) -> str:
    """Settings, then for each shape its figures and ratios."""
    lines = [
        *heading("The embedded sampler, side by side", found),
        "Medians over rounds (least to greatest). CPU seconds are of all processes of an engine,"
        " user and system; the peak of resident memory is since its start.",
    ]
    for name, part in found["shapes"].items():
        lines += ["", *shape_lines(name, part["shape"], part["runs"])]
    return "\n".join(lines) + "\n"


def shape_lines(name: str, shape: Found, runs: Found) -> list[str]:
    first = next(iter(runs))
    counts = ", ".join(f"{key} {value}" for key, value in shape.items())
    rows = shape["prompts"] * shape["group"]
    table_rows = [
        [engine, *map(spread, figures(of, COLUMNS)), f"{mean_length(of, rows):.1f}"]
        for engine, of in runs.items()
    ]
    return [
        f"## {name}",
        "",
        f"{counts}; {len(runs[first])} rounds.",
        "",
        *table(["engine", *COLUMNS, "tokens / completion"], table_rows),
        "",
        f"{first} divided by each, median of the rounds' ratios (least to greatest):",
        "",
        *table(["engine", *COLUMNS], ratio_rows(runs, COLUMNS)),
    ]


def mean_length(runs: list[Found], rows: int) -> float:
    return sum(run["tokens"] for run in runs) / sum(run["calls"] * rows for run in runs)
