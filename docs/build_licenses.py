"""Write docs/licenses.md: every package that an installation of ours brings, and its licence.

    python docs/build_licenses.py          write it
    python docs/build_licenses.py --check  exit 1 on a licence that is not known here as permissive

The packages are those that the installed ogrpo asks for, directly or not, on this platform; the
licences are what their own metadata say.
"""

import argparse
import re
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

PAGE = Path(__file__).resolve().parent / "licenses.md"
EXTRAS = ("", "train")
HEAD = """# Licences of what we depend on

<!-- Written by docs/build_licenses.py from the packages' own metadata; do not edit. -->

ogrpo is under Apache-2.0. `pip install ogrpo[train]` brings these packages; those in bold are
named by us, the others come with them. Licences are as the packages' metadata tell them. One of
them is a weak copyleft, MPL-2.0: it binds who changes those packages' files, not who uses them.
`python docs/build_licenses.py --check` fails on a licence that is not known as permissive.

| package | licence | with |
|---|---|---|
"""
PERMISSIVE = re.compile(
    r"Apache|BSD|\bMIT\b|\bISC\b|Python Software Foundation|PSF|Zlib|CC0|HPND|MPL|Mozilla",
    re.IGNORECASE,
)
COPYLEFT = re.compile(r"\bA?L?GPL|General Public", re.IGNORECASE)


def normal(name: str) -> str:
    """A package's name as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def requirements(distribution: Distribution, extras: frozenset[str]) -> Iterator[Requirement]:
    """Yields the requirements of an installed package that hold here."""
    for line in distribution.requires or ():
        requirement = Requirement(line)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": each}) for each in ("", *extras)):
            yield requirement


def brought(name: str, extras: frozenset[str]) -> dict[str, Distribution]:
    """A package's dependencies, its own names first, without the package."""
    closure: dict[str, Distribution] = {}
    todo = [(name, extras)]
    while todo:
        asker, extras_of = todo.pop(0)
        for requirement in requirements(distribution(asker), extras_of):
            key = normal(requirement.name)
            if key in closure or key == normal(name):
                continue
            try:
                closure[key] = distribution(requirement.name)
            except PackageNotFoundError:
                sys.exit(f"{requirement.name} is not installed: pip install -e '.[train]' first")
            todo.append((requirement.name, frozenset(requirement.extras)))
    return closure


def licence(distribution: Distribution) -> str:
    """Returns the licence in a package's metadata, in one line."""
    metadata = distribution.metadata
    if expression := metadata.get("License-Expression"):
        return expression
    classifiers = metadata.get_all("Classifier") or ()
    trove = [each.split(" :: ")[-1] for each in classifiers if each.startswith("License ::")]
    if trove:
        return ", ".join(trove)
    first = (metadata.get("License") or "").strip().split("\n")[0]
    return first or "not told"


def table() -> tuple[str, list[str]]:
    """The page's rows, and the packages whose licence is not known as permissive."""
    named = {normal(each.name) for each in requirements(distribution("ogrpo"), frozenset(EXTRAS))}
    base = brought("ogrpo", frozenset())
    rows, unknown = [], []
    for key, package in sorted(brought("ogrpo", frozenset(EXTRAS)).items()):
        terms = licence(package)
        if COPYLEFT.search(terms) or not PERMISSIVE.search(terms):
            unknown.append(f"{key}: {terms}")
        name = f"**{key}**" if key in named else key
        rows.append(f"| {name} | {terms} | {'ogrpo' if key in base else 'ogrpo[train]'} |\n")
    return "".join(rows), unknown


def main() -> None:
    """Writes the page, or checks the licences."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    rows, unknown = table()
    if unknown:
        sys.exit("licences not known as permissive:\n  " + "\n  ".join(unknown))
    if not check:
        PAGE.write_text(HEAD + rows, encoding="utf-8")


if __name__ == "__main__":
    main()
