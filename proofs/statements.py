"""Hashes of what the theorems state, for the table of README.md: a changed constant changes one.

    python proofs/statements.py           # the table's hashes that no longer agree
    python proofs/statements.py --write   # after reading what changed, renews them

A hash covers a theorem's statement, the variables and hypotheses of the sections around it, and the
text of every definition that these mention, through all chapters. Needs Python and nothing else.
"""

import hashlib
import re
import sys
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
DEFINITIONS = ("Definition", "Fixpoint", "Notation", "Inductive", "Record")
CONTEXT = ("Variable", "Hypothes", "Context", "Notation")
CITED = re.compile(r"`([A-Z]\w+\.\w+)`(?: ([0-9a-f]{8} [A-Z-]+))?")


class Claim(NamedTuple):
    """A theorem's name, its statement, and the section variables and hypotheses it is under."""

    name: str
    statement: str
    context: tuple[str, ...]


def sentences(source: str) -> list[str]:
    """The sentences of a chapter in one spacing, without comments and proofs."""
    bare, depth = [], 0
    for piece in re.split(r"(\(\*|\*\))", source):
        depth += (piece == "(*") - (piece == "*)")
        if depth == 0 and piece != "*)":
            bare.append(piece)
    text = re.sub(r"\bProof\b.*?\bQed\.(?=\s|$)", "", "".join(bare), flags=re.DOTALL)
    return [" ".join(part.split()) for part in re.split(r"\.(?:\s+|$)", text) if part.strip()]


def parse(chapters: dict[str, str]) -> tuple[list[Claim], dict[str, str]]:
    """The theorems of the chapters, and the text of what is defined under each name."""
    claims: list[Claim] = []
    definitions: dict[str, str] = {}
    for chapter, source in chapters.items():
        sections: list[list[str]] = [[]]
        for sentence in sentences(source):
            words = re.findall(r"[\w']+", sentence)
            if sentence.startswith("Section "):
                sections.append([])
            elif sentence.startswith("End "):
                sections.pop()
            elif sentence.startswith(CONTEXT):
                sections[-1].append(sentence)
            if sentence.startswith(DEFINITIONS):
                definitions[words[1]] = definitions.get(words[1], "") + sentence
            elif sentence.startswith("Theorem "):
                context = tuple(line for section in sections for line in section)
                claims.append(Claim(f"{chapter}.{words[1]}", sentence, context))
    return claims, definitions


def digest(claim: Claim, definitions: dict[str, str]) -> str:
    """Eight hexadecimal digits of the statement and all that it depends on."""
    texts, reached = [*claim.context, claim.statement], set[str]()
    for text in texts:  # grows while names lead to further definitions
        for word in re.findall(r"[\w']+", text):
            if word in definitions and word not in reached:
                reached.add(word)
                texts.append(definitions[word])
    return hashlib.sha256("\n".join(sorted(texts)).encode()).hexdigest()[:8]


FIDELITY = {
    "S": r"\babscont\b",
    "I": r"\b(iid|prodd|chance|certified|mse|c_group)\b",
    "L": r"\b(ratio|m2|chi2|kl|certified|token_\w+|surrogate|clipped|gaps|balanced|halved"
    r"|rejected)\b",
}
"""What a statement assumes that a run may violate: support, independence, exact log-probs."""


def assumptions(claim: Claim) -> str:
    """The letters of `FIDELITY` that the statement and its hypotheses earn; "-" for none."""
    text = " ".join([*claim.context, claim.statement])
    return "".join(key for key, sign in FIDELITY.items() if re.search(sign, text)) or "-"


def hashes(chapters: dict[str, str]) -> dict[str, str]:
    """The hash of every theorem and the label of its assumptions, by `Chapter.name`."""
    claims, definitions = parse(chapters)
    return {claim.name: f"{digest(claim, definitions)} {assumptions(claim)}" for claim in claims}


def read_chapters() -> dict[str, str]:
    """The chapters' sources by name."""
    chapters = sorted(path for path in HERE.glob("*.v") if path.stem != "Assumptions")
    return {path.stem: path.read_text() for path in chapters}


def main() -> None:
    """Compares the table with the chapters, or renews it."""
    current, page = hashes(read_chapters()), HERE / "README.md"
    text = page.read_text()
    start = text.index("| claim | exact statement")
    table = text[start:]
    if sys.argv[1:] == ["--write"]:

        def renewed(match: re.Match[str]) -> str:
            name = match[1]
            return f"`{name}` {current[name]}" if name in current else match[0]

        page.write_text(text[:start] + CITED.sub(renewed, table))
        names = "\n  ".join(f"(@{name}," for name in current)
        imports = "\n".join(f"From OGRPO Require Import {name}." for name in read_chapters())
        (HERE / "Assumptions.v").write_text(
            "(** Prints the axioms under all theorems at once; check.sh compares them with\n"
            "    allowed_axioms.txt. Written by statements.py. *)\n"
            f"{imports}\n\nDefinition all_theorems :=\n  {names}\n  I{')' * len(current)}.\n\n"
            "Print Assumptions all_theorems.\n"
        )
        return
    stale = [name for name, written in CITED.findall(table) if current.get(name) != written]
    print("\n".join(stale) if stale else f"{len(current)} hashes agree")


if __name__ == "__main__":
    main()
