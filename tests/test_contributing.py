"""CONTRIBUTING.md's recipes, followed to the letter: each block runs, each path that it names exists."""

import re
from pathlib import Path

import jax
import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
RECIPES = dict(
    zip(
        re.findall(r"^## (Add .*)$", PAGE, flags=re.M),
        re.split(r"^## Add .*$", PAGE, flags=re.M)[1:],
        strict=True,
    )
)


@pytest.mark.parametrize("recipe", ["Add an algorithm", "Add a task", "Add an engine"])
def test_the_code_of_a_recipe_runs(recipe):
    (block,) = re.findall(r"```python\n(.*?)```", RECIPES[recipe], flags=re.S)
    with jax.numpy_rank_promotion("allow"):
        exec(compile(block, recipe, "exec"), {})


def test_the_recipe_of_a_proof_names_commands_that_are_there():
    (block,) = re.findall(r"```sh\n(.*?)```", RECIPES["Add a proof"], flags=re.S)
    assert block.splitlines() == [
        "make -C proofs",
        "python proofs/statements.py --write",
        "python -m pytest -q tests/proofs",
    ]
    assert (ROOT / "proofs/Makefile").is_file()
    assert '"--write"' in (ROOT / "proofs/statements.py").read_text()


def test_every_path_that_is_named_exists():
    paths = re.findall(r"`((?:src|tests|docs|proofs|examples|\.ci)/[\w./-]*)`", PAGE)
    assert len(paths) > 15
    missing = [path for path in paths if not (ROOT / path).exists()]
    assert missing == ["src/ogrpo/tasks/NAME.py"]


@pytest.mark.parametrize("name", ["ctpo", "opmd_min", "rec_ring_is", "topr_token"])
def test_a_method_of_known_knobs_stands_in_four_files(name):
    """Two of the source, the formula, and docs/names.md: what the recipe says, and nothing else."""
    word = re.compile(rf"\b{name}\b")
    source = [path for path in (ROOT / "src").rglob("*.py") if word.search(path.read_text())]
    paths = {str(path.relative_to(ROOT)) for path in source}
    assert paths == {"src/ogrpo/core/objectives.py", "src/ogrpo/core/algorithms/catalogue.py"}
    assert word.search((ROOT / "tests/core/reference.py").read_text())
    assert all(path in RECIPES["Add an algorithm"] for path in paths)
