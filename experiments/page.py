"""Report pages: one look, one file that needs nothing but itself."""

from pathlib import Path
from typing import Any

import jinja2

PAGES = jinja2.Environment(loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True)


def render(template: str, **values: Any) -> str:
    """The page that a template of this folder makes of the values."""
    return PAGES.get_template(template).render(**values)
