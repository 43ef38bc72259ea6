"""Writes the tables of docs/algebra.md: each public function of the core, its source, its tests.

    python docs/build_algebra.py          write them
    python docs/build_algebra.py --check  exit 1 if they are not what the code says

Formula and source are the docstring's. A test belongs to a function if it uses it, itself or
through the helpers of its file.
"""

import argparse
import ast
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # for the rows of benchmarks
CORE = ROOT / "src/ogrpo/core"
PAGE = ROOT / "docs/algebra.md"
ORDER = (
    *("ratios", "weights", "traces", "surrogates", "gates", "advantages", "returns"),
    *("divergences", "aggregate", "objectives.base", "objectives.score", "objectives.clipped"),
    *("objectives.divergent", "objectives.regression", "corrections", "algorithms.base"),
    *("algorithms.parts", "trust_region", "estimators", "bounds", "diagnostics"),
)
TESTS = ROOT / "tests"
MATRIX = "tests/core/test_objectives.py"
PER_OBJECTIVE = "test_value_and_gradient_are_the_papers_with_its_stopped_terms_held"
Symbol = tuple[str, str]  # module, function


def modules() -> list[str]:
    """The modules in reading order; one not listed comes last, rather than not at all."""
    names = {".".join(path.relative_to(CORE).with_suffix("").parts) for path in CORE.rglob("*.py")}
    plumbing = {"checks", "masked", "algorithms.catalogue"}
    rest = {name for name in names if not name.endswith("__init__")} - plumbing - set(ORDER)
    return [*ORDER, *sorted(rest)]


def file_of(module: str) -> Path:
    """The file of a module."""
    return CORE / f"{module.replace('.', '/')}.py"


def public_functions(module: str) -> list[ast.FunctionDef]:
    """The module's public functions, in order."""
    tree = ast.parse(file_of(module).read_text())
    functions = [n for n in tree.body if isinstance(n, ast.FunctionDef)]
    return [n for n in functions if not n.name.startswith("_")]


def paragraph_after(mark: str, doc: str) -> str:
    """The rest of the paragraph after `mark`, on one line; up to the docstring's next heading."""
    if mark not in doc:
        return ""
    text = " ".join(doc.split(mark, 1)[1].split("\n\n")[0].split())
    for heading in ("Bias:", "Support:", "Args", "Unbiased"):
        text = text.split(heading)[0]
    return text.strip()


def imported(tree: ast.Module) -> dict[str, Symbol]:
    """Local name -> (module, function), or (module, "") for a module of the core."""
    names: dict[str, Symbol] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ogrpo.core"):
            for alias in node.names:
                inside = (node.module or "").removeprefix("ogrpo.core").lstrip(".")
                symbol = (inside.split(".")[0], alias.name) if inside else (alias.name, "")
                names[alias.asname or alias.name] = symbol
    return names


def uses(node: ast.AST, names: dict[str, Symbol]) -> tuple[set[Symbol], set[str]]:
    """The core's functions and the file's own names that `node` mentions."""
    symbols, local = set(), set()
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name):
            symbols.add((names.get(part.value.id, ("", ""))[0], part.attr))
        elif isinstance(part, ast.Name):
            symbols.add(names.get(part.id, ("", "")))
            local.add(part.id)
    return symbols, local


def defined_names(node: ast.stmt) -> list[str]:
    """Returns the names that a statement of a test file binds."""
    if isinstance(node, ast.FunctionDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else []
    return [n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)]


def tests_in(path: Path) -> dict[Symbol, list[str]]:
    """Symbol -> names of the tests of one file that reach it."""
    tree = ast.parse(path.read_text())
    names = imported(tree)
    mentions = {name: uses(node, names) for node in tree.body for name in defined_names(node)}

    def reach(name: str, seen: set[str]) -> set[Symbol]:
        if name in seen or name not in mentions:
            return set()
        seen.add(name)
        symbols, local = mentions[name]
        return symbols.union(*(reach(other, seen) for other in local))

    by_symbol = defaultdict(list)
    for name in (n for n in mentions if n.startswith("test_")):
        for symbol in reach(name, set()):
            by_symbol[symbol].append(name)
    return by_symbol


def all_tests() -> dict[Symbol, list[str]]:
    """Symbol -> tests; those of exact/ and properties/ where there are any."""
    by_symbol = defaultdict(list)
    for folders in (("exact", "properties"), ("core",)):
        known = {symbol for symbol, names in by_symbol.items() if names}
        for path in [path for one in folders for path in sorted(TESTS.glob(f"{one}/test_*.py"))]:
            for symbol, names in tests_in(path).items():
                if symbol not in known:
                    by_symbol[symbol] += [f"{path.relative_to(ROOT)}::{name}" for name in names]
    for node in ast.parse((ROOT / "tests/core/reference.py").read_text()).body:
        for name in defined_names(node):  # one formula there for each objective
            by_symbol["objectives", name].append(f"{MATRIX}::{PER_OBJECTIVE}")
    return by_symbol


def row(module: str, node: ast.FunctionDef, tests: dict[Symbol, list[str]]) -> str:
    """One line of a table."""
    doc = ast.get_docstring(node) or ""
    formula = doc.splitlines()[0].split(" Source:")[0]
    source = paragraph_after("Source:", doc)
    by_file = defaultdict(list)
    for test in tests.get((module.split(".")[0], node.name), []):
        by_file[test.split("::")[0]].append(test.split("::")[1].removeprefix("test_"))
    proof = "<br>".join(f"{file}: {', '.join(names)}" for file, names in by_file.items())
    cells = [f"`{node.name}`", formula, source, proof]
    return "| " + " | ".join(map(escaped, cells)) + " |"


def escaped(cell: str) -> str:
    """Escapes a text for a Markdown table: a bar ends a cell anywhere, the rest outside of code."""
    spans = cell.replace("|", "\\|").split("`")
    for i in range(0, len(spans), 2):
        for char, safe in (("<", "&lt;"), ("_", "\\_"), ("*", "\\*")):
            spans[i] = spans[i].replace(char, safe)
    return "`".join(spans).replace("&lt;br>", "<br>")


def algorithm_rows() -> list[str]:
    """A table of the whole methods, from the values themselves."""
    from ogrpo.core import returns
    from ogrpo.core.algorithms import ADVANTAGES, GROUPS, REDUCTIONS

    critic_based = {"gae": returns.gae}  # not to be exchanged: its critic belongs to it
    tables = (ADVANTAGES, REDUCTIONS, critic_based)
    named = {id(part): name for table in tables for name, part in table.items()}
    rows = ["| algorithm | in one line | advantage | reduction | reads | knobs | source |"]
    rows += ["|---|---|---|---|---|---|---|"]
    for algorithm in (a for group in GROUPS.values() for a in group):
        knobs = [
            f"`{name}` {'' if knob.default is None else f'{knob.default:.4g} '}({knob.source})"
            for name, knob in algorithm.knobs.items()
        ]
        name, reads = f"`{algorithm.name}`", ", ".join(sorted(algorithm.reads))
        parts = (named[id(part)] for part in (algorithm.advantage, algorithm.reduction))
        cells = [name, algorithm.summary, *parts, reads, "; ".join(knobs), algorithm.source]
        rows.append("| " + " | ".join(map(escaped, cells)) + " |")
    return rows


def trained_rows() -> list[str]:
    """The table of short runs, from their rows, and the methods that have none."""
    from benchmarks.algorithms import KEPT, missing, summary
    from benchmarks.rows import read_rows

    rows = read_rows(KEPT)
    lacking = ", ".join(f"`{name}`" for name in missing(rows))
    return [*summary(rows), *(["", f"Without runs of both seeds: {lacking}."] if lacking else [])]


def functions_by_module() -> list[str]:
    """A section for each module: its first paragraph, and a table of its functions."""
    tests, lines = all_tests(), []
    for module in modules():
        about = ast.get_docstring(ast.parse(file_of(module).read_text())) or ""
        lines += ["", f"## ogrpo.core.{module}", "", *about.split("\n\n")[0].split("\n"), ""]
        lines += ["| symbol | formula | source | tests |", "|---|---|---|---|"]
        lines += [row(module, node, tests) for node in public_functions(module)]
    return lines


def page(text: str) -> str:
    """The page with each table made anew, between its two marks."""
    made = {"algorithms": algorithm_rows, "runs": trained_rows, "functions": functions_by_module}
    for name, table in made.items():
        before, begin, rest = text.partition(f"<!-- {name}, from the code -->\n")
        _, end, after = rest.partition(f"\n<!-- end of {name} -->")
        if not end:
            sys.exit(f"{PAGE.name} has lost a mark of its {name}: put back the committed page")
        text = "".join((before, begin, "\n".join(table()), end, after))
    return text


def main() -> int:
    """Writes the page, or compare it."""
    parser = argparse.ArgumentParser(description="Write the tables of docs/algebra.md.")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    text = PAGE.read_text()
    if not parser.parse_args().check:
        PAGE.write_text(page(text))
    elif text != page(text):
        print(f"{PAGE.name} is not current; run python docs/build_algebra.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
