"""The look of pages, each one file that needs nothing but itself, and of matplotlib's figures."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
from markupsafe import Markup

from ogrpo.system.files import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HERE = Path(__file__).parent


def render(template: Path, **values: Any) -> str:
    """Returns the page of a template, which may extend `page.html.j2` of this folder.

    Where there is a value `data`, the page holds it as JSON, with the script that draws its curves.
    """
    loader = jinja2.FileSystemLoader([template.parent, HERE])
    page = jinja2.Environment(loader=loader, autoescape=True).get_template(template.name)
    return page.render(
        asset=lambda name: Markup((HERE / "assets" / name).read_text(encoding="utf-8")), **values
    )


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


def save_figure(figure: "Figure", path: Path) -> None:
    """Writes a PNG, whole or not at all."""
    with replacing(path, "wb") as file:
        figure.savefig(file, format="png")
