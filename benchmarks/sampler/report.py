"""The measurements as a markdown report."""

from benchmarks.side_by_side import Columns, Found, figures, heading, ratio_rows, spread, table

COLUMNS: Columns = {
    "tokens / CPU-s": lambda run: run["tokens"] / run["cpu"],
    "tokens / s": lambda run: run["tokens"] / run["wall"],
    "peak MiB": lambda run: run["peak"],
}


def report(measured: Found) -> str:
    """Settings, then for each shape its figures and ratios."""
    lines = [
        *heading("The embedded sampler, side by side", measured),
        "Medians over rounds (least to greatest). CPU seconds are of all processes of an engine,"
        " user and system; the peak of resident memory is since its start.",
    ]
    for name, part in measured["shapes"].items():
        lines += ["", *shape_lines(name, part["shape"], part["runs"])]
    return "\n".join(lines) + "\n"


def shape_lines(name: str, shape: Found, runs: Found) -> list[str]:
    first = next(iter(runs))
    counts = ", ".join(f"{key} {value}" for key, value in shape.items())
    rows = shape["prompts"] * shape["group"]
    table_rows = []
    for engine, of in runs.items():
        length = sum(run["tokens"] for run in of) / sum(run["calls"] * rows for run in of)
        table_rows.append([engine, *map(spread, figures(of, COLUMNS)), f"{length:.1f}"])
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
        *(agreement(runs) if shape["greedy"] else ()),
    ]


def agreement(runs: Found) -> list[str]:
    """Returns how far each engine drew the first one's tokens, in the first batch of each round."""
    first = {name: [row for run in of for row in run["first"]] for name, of in runs.items()}
    (ours, rows), *others = first.items()
    return [
        "",
        *(
            f"{name}: {sum(map(shared, rows, theirs))} of {sum(map(len, rows))} tokens are"
            f" {ours}'s, up to the first that differs in each of {len(rows)} completions"
            for name, theirs in others
        ),
    ]


def shared(ours: list[int], theirs: list[int]) -> int:
    """Tokens before the first that differs."""
    pairs = enumerate(zip(ours, theirs, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(ours), len(theirs)))
