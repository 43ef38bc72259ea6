"""Report pages: one look, one file that needs nothing but itself."""

from pathlib import Path
from typing import Any

import jinja2

HERE = Path(__file__).parent


def render(template: Path, **values: Any) -> str:
    """The page that a template makes of the values; it may extend `page.html.j2` of this folder."""
    loader = jinja2.FileSystemLoader([template.parent, HERE])
    return (
        jinja2.Environment(loader=loader, autoescape=True)
        .get_template(template.name)
        .render(**values)
    )
