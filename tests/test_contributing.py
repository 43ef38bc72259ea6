"""CONTRIBUTING.md's recipe of a method is whole; tests/test_pages.py runs the blocks of all."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RECIPE = (ROOT / "CONTRIBUTING.md").read_text().split("## Add an algorithm")[1].split("## Add")[0]


@pytest.mark.parametrize("name", ["ctpo", "opmd_min", "rec_ring_is", "topr_token"])
def test_a_method_of_known_knobs_stands_in_four_files(name):
    """Two of the source, the formula, and docs/names.md: what the recipe says, and nothing else."""
    word = re.compile(rf"\b{name}\b")
    source = [path for path in (ROOT / "src").rglob("*.py") if word.search(path.read_text())]
    paths = {str(path.relative_to(ROOT)) for path in source}
    catalogue = "src/ogrpo/core/algorithms/catalogue.py"
    (family,) = paths - {catalogue}
    assert family.startswith("src/ogrpo/core/objectives/")
    assert catalogue in RECIPE
    assert word.search((ROOT / "tests/core/reference.py").read_text())
