"""Report pages: one look, one file that needs nothing but itself."""

import base64
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jinja2

HERE = Path(__file__).parent


def render(template: Path, **values: Any) -> str:
    """Returns the page of a template, which may extend `page.html.j2` of this folder."""
    loader = jinja2.FileSystemLoader([template.parent, HERE])
    return (
        jinja2.Environment(loader=loader, autoescape=True)
        .get_template(template.name)
        .render(**values)
    )


def embedded(plots: Iterable[Path]) -> list[dict[str, str]]:
    """Returns name and base64 content of PNG files, as the templates take them."""
    return [
        {"name": path.stem, "data": base64.b64encode(path.read_bytes()).decode()} for path in plots
    ]
