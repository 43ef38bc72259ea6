"""The measurements as a markdown report."""

import statistics

from benchmarks.side_by_side import (
    Columns,
    Found,
    Runs,
    figures,
    heading,
    ratio_rows,
    ratios,
    spread,
    table,
)

COLUMNS: Columns = {
    "CPU s": lambda run: run["cpu"],
    "wall s": lambda run: run["wall"],
    "peak MiB": lambda run: run["peak"],
    "peak - imports MiB": lambda run: run["peak"] - run["imports"],
    "timed peak - imports MiB": lambda run: run["timed_peak"] - run["imports"],
}

FIGURES: Columns = {**COLUMNS, "share of the product limit": lambda run: run["share"]}


def report(measured: Found) -> str:
    """Settings, then for each shape its figures, ratios and checks."""
    lines = [
        *heading("One GRPO update, side by side", measured),
        "Medians over rounds (least to greatest). CPU and wall seconds are of one update; the peak"
        " of resident memory is of the process, compilation included; the timed peak is that of"
        " the timed updates alone. The limit is what the products that an update cannot do without"
        " take at the rate of a bare product, measured in the same round.",
    ]
    for name, part in measured["shapes"].items():
        lines += ["", *shape_lines(name, part)]
    return "\n".join(lines) + "\n"


def shape_lines(name: str, part: Found) -> list[str]:
    shape, runs = part["shape"], part["runs"]
    first = next(iter(runs))
    counts = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in shape.items())
    least = min(len(of) for of in runs.values())
    return [
        f"## Shape {name}",
        "",
        f"{counts}; {least} rounds.",
        "",
        *table(
            ["system", *FIGURES],
            [[s, *map(spread, figures(of, FIGURES))] for s, of in runs.items()],
        ),
        "",
        f"Products at {spread([run['rate'] / 1e9 for run in runs[first]])} Gflop a CPU-second.",
        "",
        f"{first} divided by each, median of the rounds' ratios (least to greatest):",
        "",
        *table(["system", *COLUMNS], ratio_rows(runs, COLUMNS)),
        "",
        f"{first} divided by the better of a peer's settings, column by column:",
        "",
        *table(["peer", *COLUMNS], best_rows(runs)),
        *check_lines(part["checks"]),
    ]


def best_rows(runs: Runs) -> list[list[str]]:
    """The greatest ratio over a peer's settings, with the settings that gave it."""
    rows = []
    for peer in dict.fromkeys(spec.partition(":")[0] for spec in list(runs)[1:]):
        specs = [spec for spec in list(runs)[1:] if spec.partition(":")[0] == peer]
        middles = {
            s: [statistics.median(values) for values in ratios(runs, s, COLUMNS)] for s in specs
        }
        cells = [
            max((middle[at], spec) for spec, middle in middles.items())
            for at in range(len(COLUMNS))
        ]
        rows.append([peer, *(f"{ratio:.2f} ({_settings(spec)})" for ratio, spec in cells)])
    return rows


def _settings(spec: str) -> str:
    return spec.partition(":")[2] or "default"


def check_lines(checks: Found | None) -> list[str]:
    if checks is None:
        return ["", "Losses and gradient norms were not compared."]
    gaps, measured = checks["differences"], checks["runs"]
    first = next(iter(measured.values()))
    rows = [
        [s, *(f"{gap[key]:.1e}" for key in ("loss", "norm", "later"))] for s, gap in gaps.items()
    ]
    return [
        "",
        f"From shared weights: loss {first['losses'][0]:.6f}, gradient norm "
        f"{first['norms'][0]:.6f}, loss of the third update {first['losses'][-1]:.6f}; relative "
        "differences:",
        "",
        *table(["system", "loss", "gradient norm", "loss of the third update"], rows),
    ]
