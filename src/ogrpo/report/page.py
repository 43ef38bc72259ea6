"""Report pages: one look, one file that needs nothing but itself."""

from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

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
