"""Names and docstrings are in the field's words: CONTRIBUTING.md, rules and numbers in docs/house.py.

`python docs/house.py --words` prints the places of what the test refuses.
"""

import ast
import re
from collections import defaultdict

import pytest

from docs import house


@pytest.mark.parametrize("rule", [house.dialect, house.clauses], ids=lambda rule: rule.__name__)
def test_no_module_has_a_word_of_the_dialect_or_a_bare_clause(rule):
    assert [place for file in house.modules(*house.CHECKED) for place in rule(file)] == []


def test_a_class_or_an_alias_of_types_is_defined_once():
    """Two definitions that are equal to the letter have one meaning, and may stay apart."""
    definitions = defaultdict(set)
    for file in house.modules(*house.SOURCES):
        where = file.path.relative_to(house.ROOT)
        for node in ast.walk(file.tree):
            if isinstance(node, ast.ClassDef):
                definitions[node.name].add(f"{where}:{node.lineno}")
        for node in file.tree.body:
            match node:
                case ast.Assign(targets=[ast.Name(id=name)]) if re.match("_?[A-Z].*[a-z]", name):
                    definitions[name].add(ast.unparse(node.value))
    assert {name: each for name, each in definitions.items() if len(each) > 1} == {}


def module(text):
    return house.Module(house.ROOT / "src/ogrpo/core/example.py", text, ast.parse(text))


def test_the_rules_refuse_what_they_name():
    file = module(
        '''"""What the user typed."""
def f(given, *, other):
    """Returns the sum."""
    _found = given.wanted
    return g(told=_found)
async def told(told):
    """Whether it is so."""
import a as owed
class H:
    """Of a line."""
    def h():
        """Return it.

        Args:
            none
        """
'''
    )
    where = "src/ogrpo/core/example.py"
    places = ["2 given", "4 found", "4 given", "4 wanted"]
    places += ["5 found", "5 told", "6 told", "6 told", "8 owed"]
    assert sorted(house.dialect(file)) == [f"{where}:{place}" for place in places]
    opened = ["1 What the user typed.", "9 Of a line.", "11 Return it. Args: none"]
    assert house.clauses(file) == [f"{where}:{place}" for place in opened]
    assert house.body_lines(file.tree.body[1]) == 2
    assert file.package == "core"


def test_contributing_names_each_word_that_is_refused():
    page = (house.ROOT / "CONTRIBUTING.md").read_text()
    assert all(f"`{word}`" in page for word in house.DIALECT)
