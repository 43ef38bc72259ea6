"""The documentation site: docs/*.md by Sphinx, offline, every warning an error.

    python -m sphinx -W --keep-going -b html docs build/site

It needs `pip install -e '.[docs]'`. The paper index is made at each build, from the catalogue of
algorithms.
"""

import re
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent

project = "ogrpo"
author = copyright = "The ogrpo contributors"
release = version_of("ogrpo")
extensions = ["myst_parser"]
exclude_patterns = ["studies/**"]
html_theme = "furo"
html_title = "ogrpo"
html_static_path: list[str] = []
myst_heading_anchors = 4
nitpicky = True
# A page that docs/index.md does not list yet is reached by links and by search.
suppress_warnings = ["toc.not_included"]


def paper_index() -> str:
    """Returns the page of papers, each with its methods and their published settings."""
    from ogrpo.core.algorithms import ALGORITHMS

    papers: dict[str, list[str]] = {}
    for name, algorithm in ALGORITHMS.items():
        ids = re.findall(r"arXiv:(\d{4}\.\d{5})", algorithm.source) or [""]
        knobs = ", ".join(
            f"{knob} {value.default:g}"
            for knob, value in algorithm.knobs.items()
            if value.default is not None
        )
        row = f"| `{name}` | {algorithm.summary} | {algorithm.source} | {knobs} |"
        papers.setdefault(ids[0], []).append(row.replace("*", r"\*"))
    lines = [
        "# Paper index",
        "",
        "Each paper with the methods that are its own or begin with it. `--algorithm NAME` takes a",
        "method whole, with the settings of the last column unless `--knobs.*` says otherwise. The",
        "sources of single settings are in [the algebra](algebra.md), other projects' names in",
        "[names](names.md), what we measured in [results](results.md) and [reuse](reuse.md).",
    ]
    for paper, rows in sorted(papers.items(), reverse=True):
        title = f"[arXiv:{paper}](https://arxiv.org/abs/{paper})" if paper else "Before arXiv"
        lines += ["", f"## {title}", "", "| `--algorithm` | what it is | source | settings |"]
        lines += ["|---|---|---|---|", *rows]
    return "\n".join([*lines, ""])


def write_paper_index(_app: Any) -> None:
    """Writes the page before the sources are read."""
    page, text = DOCS / "paper_index.md", paper_index()
    if not page.is_file() or page.read_text() != text:
        page.write_text(text)


def to_the_repository(_app: Any, _name: str, source: list[str]) -> None:
    """Turns links to files outside docs/, which the site does not hold, into their paths."""
    source[0] = re.sub(r"(?<!!)\[([^]]+)\]\(\.\./([^)#]+)(?:#[^)]*)?\)", r"\1 (`\2`)", source[0])


def setup(app: Any) -> None:
    """Joins the two to the build."""
    app.connect("builder-inited", write_paper_index)
    app.connect("source-read", to_the_repository)
