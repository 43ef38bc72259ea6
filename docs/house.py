"""Measures the house: lines, functions, docstrings, words, imports (docs/architecture.md).

    python docs/house.py            the numbers, as the tables of docs/architecture.md
    python docs/house.py --write    writes them there
    python docs/house.py --words    words of the dialect and bare clauses, by place

A function's body is its statements without the docstring. A docstring's words are counted without
its examples. An identifier is a name, an argument, an attribute, a definition, or what `as` binds.
"""

import ast
import re
import statistics
import sys
from collections import Counter
from collections.abc import Iterator
from inspect import cleandoc
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SOURCES = ("src/ogrpo", "src/ogrpo_plan", "kernels")
CHECKED = (*SOURCES, "experiments", "benchmarks", "examples", "tests", "docs", ".ci")
"""Whose words tests/test_words.py checks."""
OTHERS = ("tests", "experiments", "benchmarks", "examples")

DIALECT = frozenset(
    ("found", "wanted", "given", "own", "told", "chosen", "asked", "heard", "owed", "owing")
)
"""Words that name how a thing came here and not what it is."""

ORDERS = re.compile("Call|Check|Count|End|Make|Parse|Print|Raise|Read|Return|Tell|Write|Yield")
"""First words of docstrings that tell the reader to do what the function does."""
CLAUSES = frozenset(
    (
        *("what", "how", "where", "when", "who", "whom", "whose", "which", "why", "if", "unless"),
        *("because", "as", "of", "to", "in", "on", "at", "by", "for", "from", "with", "without"),
        *("not", "no", "both", "see", "nothing", "nobody"),
    )
)
"""First words of a docstring that opens as a bare clause. "Whether" is none of them: it says what a
predicate returns."""


class Module(NamedTuple):
    """One file, read once."""

    path: Path
    text: str
    tree: ast.Module

    @property
    def package(self) -> str:
        """The package that it is counted to: `core`, `rollout`, ..., or a folder of the root."""
        parts = self.path.relative_to(ROOT).parts
        if parts[0] != "src":
            return parts[0]
        if parts[1] != "ogrpo":
            return parts[1]
        return parts[2] if len(parts) > 3 else parts[2].removesuffix(".py")


Function = ast.FunctionDef | ast.AsyncFunctionDef
Documented = Function | ast.ClassDef | ast.Module


def modules(*folders: str) -> list[Module]:
    """Reads every Python file below folders of the repository; a link is not followed."""
    files = []
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if ROOT / "src/ogrpo/kernels" not in path.parents:
                text = path.read_text(encoding="utf-8")
                files.append(Module(path, text, ast.parse(text)))
    return files


def functions(files: list[Module]) -> list[Function]:
    """Returns all functions and methods, nested ones too."""
    return [node for file in files for node in ast.walk(file.tree) if isinstance(node, Function)]


def body_lines(function: Function) -> int:
    """Counts the lines of a function's statements, without its docstring."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return body[-1].end_lineno - body[0].lineno + 1 if body else 0


def docstrings(file: Module) -> Iterator[tuple[int, str, str]]:
    """Yields line, name and text of the docstrings of a file, its classes and its functions."""
    for node in ast.walk(file.tree):
        if isinstance(node, Documented) and (text := ast.get_docstring(node)) is not None:
            yield getattr(node, "lineno", 1), getattr(node, "name", ""), text


def words(text: str) -> int:
    """Counts the words of a docstring, without its examples."""
    lines = (line for line in text.splitlines() if not line.startswith((">>>", "...")))
    return sum(len(line.split()) for line in lines)


def identifiers(file: Module) -> Iterator[tuple[int, str]]:
    """Yields line and name of each identifier, without leading underscores."""
    for node in ast.walk(file.tree):
        match node:
            case (
                ast.Name(id=name)
                | ast.Attribute(attr=name)
                | ast.arg(arg=name)
                | ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
                | ast.ExceptHandler(name=str(name))
                | ast.MatchAs(name=str(name))
                | ast.alias(asname=str(name))
                | ast.keyword(arg=str(name))
            ):
                yield node.lineno, name.lstrip("_")


def dialect(file: Module) -> list[str]:
    """Returns `file:line name` of each identifier of the dialect that is not imported."""
    where = file.path.relative_to(ROOT)
    froms = (node for node in ast.walk(file.tree) if isinstance(node, ast.ImportFrom))
    refused = DIALECT - {alias.name for node in froms for alias in node.names}
    return [f"{where}:{line} {name}" for line, name in identifiers(file) if name in refused]


def clauses(file: Module) -> list[str]:
    """Returns `file:line first words` of each docstring that opens as a bare clause or an order.

    A test's own may: it says the case. Sections have two spaces.
    """
    where, opened = file.path.relative_to(ROOT), []
    for line, name, text in docstrings(file):
        if name.startswith("test_"):
            continue
        first = text.split(maxsplit=1)[:1]
        word = first[0] if first else ""
        bare = word.strip("`*,.:;").lower() in CLAUSES or ORDERS.fullmatch(word)
        if bare or re.search(r"(?m)^(Args|Returns|Raises|Yields):\n {3}", cleandoc(text)):
            opened.append(f"{where}:{line} {' '.join(text.split()[:4])}")
    return opened


def imports(file: Module) -> set[str]:
    """Returns the packages and modules of ogrpo that a file names, inside functions too."""
    named = set()
    for node in ast.walk(file.tree):
        if isinstance(node, ast.ImportFrom) and node.module == "ogrpo":
            named |= {f"ogrpo.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ogrpo."):
            named.add(node.module or "")
        elif isinstance(node, ast.Import):
            named |= {alias.name for alias in node.names if alias.name.startswith("ogrpo.")}
    return named


def private(files: list[Module]) -> list[Function]:
    """Returns all functions and methods whose name begins with one underscore."""
    return [each for each in functions(files) if re.match("_(?!_)", each.name)]


def used_once(files: list[Module]) -> list[Function]:
    """Returns the private functions that their module uses in one place."""
    once = []
    for file in files:
        nodes = [*ast.walk(file.tree)]
        uses = Counter(node.id for node in nodes if isinstance(node, ast.Name))
        uses.update(node.attr for node in nodes if isinstance(node, ast.Attribute))
        once += [function for function in private([file]) if uses[function.name] == 1]
    return once


def passes_through(files: list[Module], room: str) -> int:
    """Counts the modules outside a room that name it."""
    inside = f"ogrpo.{room}"
    return sum(
        file.package != room
        and any(name == inside or name.startswith(f"{inside}.") for name in imports(file))
        for file in files
    )


TEN_WORDS = "identifiers of ten of the dialect's words"
READER = {
    "lines": ("40,300", "1.9k to 5.4k", ""),
    "files": ("281", "", ""),
    "functions in 100 lines": ("6.6", "2.5 to 3.3", "1.9 to 3.4"),
    "median body, lines": ("4", "7 to 11", "8 to 12"),
    "words in a docstring": ("23", "76 to 152", "34 to 67"),
    "private functions used once": ("506 of 843", "", ""),
    "of them of at most 4 lines": ("170", "", ""),
    "lines that name `Any`": ("656", "", ""),
    TEN_WORDS: ("1,479; 2,346 of all 30", "0 of 30", "44, -, 4 of 30"),
    "modules that read `ogrpo.config`": ("34", "", ""),
}
"""An outside reader's numbers of 2026-11-22: this house then; rlax, optax, mctx and blackjax; TRL,
verl and Tunix. His rules differ a little from ours, so that single figures do. The 1,479 are ours:
identifiers of the ten words of `DIALECT` at 4193622b, the commit that he read."""


def measured(files: list[Module]) -> list[tuple[str, str]]:
    """Returns the rows of the first table: what is counted, and how many."""
    lines = sum(len(file.text.splitlines()) for file in files)
    each = functions(files)
    texts = [text for file in files for *_, text in docstrings(file)]
    once = used_once(files)
    any_lines = re.findall(r"(?m)^.*\bAny\b", "\n".join(file.text for file in files))
    return [
        ("lines", f"{lines:,}"),
        ("of them docstrings", f"{sum(len(text.splitlines()) for text in texts):,}"),
        ("files", f"{len(files)}"),
        ("functions in 100 lines", f"{100 * len(each) / lines:.1f}"),
        ("median body, lines", f"{statistics.median(map(body_lines, each)):g}"),
        ("words in a docstring", f"{statistics.mean(map(words, texts)):.0f}"),
        ("private functions used once", f"{len(once)} of {len(private(files))}"),
        ("of them of at most 4 lines", f"{sum(body_lines(each) <= 4 for each in once)}"),
        ("lines that name `Any`", f"{len(any_lines):,}"),
        (TEN_WORDS, f"{sum(len(dialect(file)) for file in files):,}"),
        ("docstrings that open as a bare clause", f"{sum(len(clauses(file)) for file in files)}"),
        *((f"modules that read `ogrpo.{room}`", f"{passes_through(files, room)}") for room in READ),
    ]


READ = ("config", "batch", "rewards")
"""A configuration, a batch and a reward: the modules outside these rooms that import from them."""


def arrows(files: list[Module]) -> list[str]:
    """Returns a row for each package: its files and lines, and what it imports, with how often."""
    rows = []
    for package in sorted({file.package for file in files}):
        inside = [file for file in files if file.package == package]
        lines = sum(len(file.text.splitlines()) for file in inside)
        targets = Counter(
            name.split(".")[1]
            for file in inside
            for name in imports(file)
            if name.split(".")[1] != package
        )
        named = ", ".join(
            f"{name} {count}"
            for name, count in sorted(targets.items(), key=lambda one: (-one[1], one[0]))
        )
        rows.append(f"| `{package}` | {len(inside)} | {lines:,} | {named} |")
    return rows


def main() -> None:
    """Prints the tables, or the places of words of the dialect."""
    if "--words" in sys.argv[1:]:
        files = modules(*CHECKED)
        print(*(place for file in files for place in (*dialect(file), *clauses(file))), sep="\n")
        return
    if "--write" in sys.argv[1:]:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n{tables()}\n{END}{rest.partition(END)[2]}")
        return
    print(tables())


PAGE = ROOT / "docs/architecture.md"
BEGIN, END = "<!-- python docs/house.py --write -->", "<!-- end of the numbers -->"


def tables() -> str:
    """Returns the tables of docs/architecture.md."""
    source = modules(*SOURCES)
    rows = ["| | here | here, by the reader | rlax, optax, mctx, blackjax | TRL, verl, Tunix |"]
    rows += ["|---|---|---|---|---|"]
    for name, value in measured(source):
        rows.append(f"| {name} | {value} | {' | '.join(READER.get(name, ('', '', '')))} |")
    rows += ["", "| folder | files | lines |", "|---|---|---|"]
    for folder in ("src", "kernels", *OTHERS):
        files = modules(folder)
        lines = sum(len(file.text.splitlines()) for file in files)
        rows.append(f"| `{folder}` | {len(files)} | {lines:,} |")
    rows += ["", "| package | files | lines | imports, and how often |", "|---|---|---|---|"]
    return "\n".join([*rows, *arrows(source)])


if __name__ == "__main__":
    main()
