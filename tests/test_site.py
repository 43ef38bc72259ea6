"""The site builds with every warning an error, and its pages load nothing from elsewhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.report.browser import CHROMIUM, DRIVER, browser

pytest.importorskip("sphinx", reason="no sphinx here: pip install -e '.[docs]'")
pytest.importorskip("myst_parser", reason="no myst-parser here: pip install -e '.[docs]'")
pytestmark = pytest.mark.slow

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    command += ["-d", folder / "doctrees", DOCS, folder / "html"]
    done = subprocess.run(command, capture_output=True, text=True)
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


@pytest.mark.skipif(CHROMIUM is None or DRIVER is None, reason="no Chromium with its driver here")
def test_a_reader_clicks_from_the_index_to_pages_and_back(site):
    with browser() as window:
        window.open(site / "index.html")
        for page in ("certificates.html", "paper_index.html"):
            window.click(f'.sidebar-tree a[href="{page}"]')
            assert window.js("location.pathname").endswith(page)
            heading = window.js('document.querySelector("h1").innerText')
            assert heading in (site / page).read_text()
            window.click(".sidebar-brand")
            assert window.js("location.pathname").endswith("index.html")
        assert window.errors() == []
