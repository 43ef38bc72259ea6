"""Names and docstrings are in the field's words: docs/glossary.md, rules and numbers in docs/house.py.

Each package has a most of its own, which may fall and not rise: `python docs/house.py --words` prints
what it is now with each place, `--hold` writes it here. A package that is not in the table has none.
"""

import ast
import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SPEC = importlib.util.spec_from_file_location("house", ROOT / "docs/house.py")
assert SPEC is not None
assert SPEC.loader is not None
house = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(house)

MOST = {
    "__init__": (0, 0),
    "__main__": (0, 0),
    "batch": (0, 0),
    "benchmarks": (0, 0),
    "cli": (0, 0),
    "config": (0, 0),
    "core": (0, 0),
    "data": (0, 0),
    "evaluation": (0, 0),
    "examples": (0, 0),
    "experiments": (0, 0),
    "kernels": (0, 0),
    "learner": (0, 0),
    "loop": (0, 0),
    "models": (0, 0),
    "ogrpo_plan": (0, 0),
    "policy": (0, 0),
    "protocol": (0, 0),
    "report": (0, 0),
    "rewards": (0, 0),
    "rollout": (0, 0),
    "run": (0, 0),
    "serving": (0, 0),
    "setup": (0, 0),
    "system": (0, 0),
    "tasks": (0, 0),
}
"""Package -> identifiers of the private dialect, docstrings that open as a bare clause."""


@pytest.fixture(scope="module")
def files():
    return house.modules(*house.CHECKED)


def test_no_package_has_more_words_of_the_dialect_than_it_had(files):
    places = {}
    for package, counts in house.by_package(files).items():
        for n, rule in enumerate((house.dialect, house.clauses)):
            if counts[n] > MOST.get(package, (0, 0))[n]:
                inside = [file for file in files if file.package == package]
                places[package, counts[n]] = [place for file in inside for place in rule(file)]
    assert places == {}


def module(text):
    return house.Module(ROOT / "src/ogrpo/core/example.py", text, ast.parse(text))


def test_the_rules_refuse_what_they_name():
    file = module(
        '''"""What the user typed."""
def f(given, *, other):
    """Returns the sum."""
    _found = given.wanted
    return g(told=_found)
def g(told):
    """Whether it is so."""
class H:
    """Of a line."""
'''
    )
    where = "src/ogrpo/core/example.py"
    assert sorted(house.dialect(file)) == [
        f"{where}:2 given",
        f"{where}:4 found",
        f"{where}:4 given",
        f"{where}:4 wanted",
        f"{where}:5 found",
        f"{where}:5 told",
        f"{where}:6 told",
    ]
    assert house.clauses(file) == [f"{where}:1 What the user typed.", f"{where}:8 Of a line."]
    assert house.body_lines(file.tree.body[1]) == 2
    assert file.package == "core"


def test_the_glossary_names_each_word_that_is_refused():
    page = (ROOT / "docs/glossary.md").read_text()
    assert all(f"`{word}`" in page for word in house.DIALECT)
