"""An evaluation's metrics as a table for the terminal."""

from rich.table import Table
from rich.text import Text

from ogrpo.evaluation.metrics import Summary

WHOLE = ("problems", "answers", "failed", "tokens/max")


def table(metrics: Summary, title: str = "") -> Table:
    """Returns a table of a `summary`: a metric, its value and its 95 % interval a row.

    Names and the title are shown as they are: no part of them is read as rich's markup.
    """
    shown = Table(title=Text(title) if title else None, title_justify="left")
    shown.add_column("metric")
    shown.add_column("value", justify="right")
    shown.add_column("95 % interval", justify="right")
    for name, value in metrics.items():
        if not name.endswith(("/low", "/high")):
            low, high = metrics.get(f"{name}/low"), metrics.get(f"{name}/high")
            known = low is not None and high is not None
            bounds = f"{_number(name, low)} to {_number(name, high)}" if known else ""
            shown.add_row(Text(name), _number(name, value), bounds)
    return shown


def _number(name: str, value: float | None) -> str:
    if value is None:
        return "none"
    if name in WHOLE:
        return f"{value:,.0f}"
    return f"{value:,.1f}" if name.startswith("tokens") else f"{value:.3f}"
