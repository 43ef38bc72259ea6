"""The site builds with every warning an error, and its pages load nothing from elsewhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("sphinx", reason="no sphinx here: pip install -e '.[docs]'")
pytest.importorskip("myst_parser", reason="no myst-parser here: pip install -e '.[docs]'")
pytestmark = pytest.mark.slow

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    done = subprocess.run(
        [*command, "-d", folder / "doctrees", DOCS, folder / "html"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return folder / "html"


def test_every_page_of_docs_is_on_the_site(site):
    pages = {page.stem for page in DOCS.glob("*.md")}
    assert {"index", "paper_index", "glossary", "algebra"} <= pages
    assert pages <= {page.stem for page in site.glob("*.html")}


def test_pages_load_nothing_from_elsewhere(site):
    loaded = [
        (page.name, tag)
        for page in site.glob("*.html")
        for tag in re.findall(r"<(?:script|link|img|iframe)[^>]*>", page.read_text())
        if re.search(r'(?:src|href)="(?:https?:)?//', tag) and "canonical" not in tag
    ]
    assert loaded == []


def test_the_paper_index_has_a_row_for_each_method(site):
    from ogrpo.core.algorithms import ALGORITHMS

    text = (site / "paper_index.html").read_text()
    assert [name for name in ALGORITHMS if f">{name}<" not in text] == []
    assert "https://arxiv.org/abs/2505.22257" in text
