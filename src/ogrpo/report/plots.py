"""The look of matplotlib's figures, which studies and the planner draw."""

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from ogrpo.system.files import replacing

BLUE, ORANGE, GREEN, GREY = "#3366aa", "#dd7722", "#338855", "#888888"
STYLE: dict[Any, Any] = {
    "figure.dpi": 110,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "font.size": 10,
    "legend.frameon": False,
}


def save_figure(figure: Figure, path: Path) -> None:
    """Writes a PNG, whole or not at all."""
    with replacing(path, "wb") as file:
        figure.savefig(file, format="png")
