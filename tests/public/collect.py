"""Makes the data of the suites again from clones of their repositories, at the commits below.

    python -m tests.public.collect CLONES    # CLONES/Math-Verify, CLONES/trl and so on

Cases are read out of the upstream tests as literals: none of their code runs. A test that is no case
of an answer, a text or a file (time bounds by mocks, the library's own options) is left out, which
the README counts.
"""

import argparse
import ast
import base64
import io
import json
import math
import re
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
COMMITS = {
    "Math-Verify": "5d148cfaaf99214c2e4ffb4bc497ab042c592a7a",
    "trl": "f2cd57710ae345ea6428ae95363267fcf38a3dc8",
    "AReaL": "cbff54d645d2cd8ee1f1c358a82f3f473588433d",
    "lm-evaluation-harness": "4e7e0d47f33bc71070c1d38394bafbb52b117163",
    "big-list-of-naughty-strings": "db33ec7b1d5d9616a88c76394b7d0897bd0b97eb",
    "JSONTestSuite": "1ef36fa01286573e846ac449e8683f8833c5b26a",
    "parquet-testing": "1a2a75127be06fc0123f03ebd36c966f7beda27d",
    "safetensors": "24b0b2857fef49be734b9ab72ce97c09bb25f5b9",
}


class Clone:
    """A repository at its commit."""

    def __init__(self, clones: Path, name: str) -> None:
        self.folder, self.commit = clones / name, COMMITS[name]

    def _git(self, *command: str) -> bytes:
        return subprocess.run(
            ["git", "-C", self.folder, *command], capture_output=True, check=True
        ).stdout

    def bytes(self, path: str) -> bytes:
        return self._git("show", f"{self.commit}:{path}")

    def text(self, path: str) -> str:
        return self.bytes(path).decode()

    def names(self, folder: str) -> list[str]:
        return self._git("ls-tree", "--name-only", f"{self.commit}:{folder}").decode().splitlines()


def tests_of(source: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in ast.parse(source).body:
        for one in node.body if isinstance(node, ast.ClassDef) else [node]:
            if isinstance(one, ast.FunctionDef) and one.name.startswith("test_"):
                owner = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
                yield owner + one.name, one


def literal(node: ast.expr, known: dict[str, Any] | None = None) -> Any:
    """The value of an expression of literals, `[x] * n`, approx(x) and f"{math.sqrt(n):.15f}"."""
    match node:
        case ast.Name(id=name) if known and name in known:
            return known[name]
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return literal(left, known) * literal(right, known)
        case ast.Call(func=ast.Attribute(attr="approx"), args=[value, *_]):
            return literal(value, known)
        case ast.Call(func=ast.Attribute(attr="sqrt"), args=[value]):
            return math.sqrt(literal(value, known))
        case ast.JoinedStr(values=parts):
            return "".join(literal(part, known) for part in parts)
        case ast.FormattedValue(value=value, format_spec=spec):
            return format(literal(value, known), literal(spec, known) if spec else "")
        case ast.List(elts=elements):
            return [literal(one, known) for one in elements]
        case ast.Tuple(elts=elements):
            return tuple(literal(one, known) for one in elements)
        case ast.Dict(keys=keys, values=values):
            return {literal(k, known): literal(v, known) for k, v in zip(keys, values, strict=True)}
    return ast.literal_eval(node)


def math_verify(clone: Clone) -> Iterator[dict[str, Any]]:
    for file in ("all", "boxed", "numina_cases", "open_thoughts", "strict", "yujianll"):
        for name, test in tests_of(clone.text(f"tests/test_{file}.py")):
            for mark in test.decorator_list:
                if not (isinstance(mark, ast.Call) and ast.unparse(mark.func).endswith("metrize")):
                    continue
                names = [one.strip() for one in literal(mark.args[0]).split(",")]
                for n, row in enumerate(literal(mark.args[1])):
                    case = dict(zip(names, row, strict=True))
                    right = bool(case.pop("expected", None) or case.pop("result", None))
                    yield {"id": f"{file}::{name}[{n}]", **case, "right": right}
            if name == "test_precision":  # its last assertion compares texts; the others, objects
                call = next(c for c in calls(test) if ast.unparse(c.func) == "compare_strings")
                gold, answer = map(literal, call.args)
                options = {k.arg: literal(k.value) for k in call.keywords if k.arg == "precision"}
                case = {"gold": gold, "pred": answer, **options, "right": True}
                yield {"id": f"{file}::{name}", **case}


def calls(test: ast.FunctionDef) -> Iterator[ast.Call]:
    found = [node for node in ast.walk(test) if isinstance(node, ast.Call)]
    yield from sorted(found, key=lambda call: (call.lineno, call.col_offset))


def trl(clone: Clone) -> Iterator[dict[str, Any]]:
    """Rows of the rewards that judge answers; of the cosine one, whether it rewards or punishes."""
    for name, test in tests_of(clone.text("tests/test_rewards.py")):
        if not re.match("Test(Accuracy|ReasoningAccuracy|CosineScaled)Reward", name):
            continue
        known: dict[str, Any] = {}
        for node in ast.walk(test):
            match node:
                case ast.Assign(targets=[ast.Name(id=variable)], value=ast.List() as value):
                    known[variable] = literal(value, known)
        texts = [c[0]["content"] for c in known.get("completions") or known["completion"]]
        golds = known.get("solutions") or known["solution"]
        worth = dict(_asserted(test))
        marks = [k for c in calls(test) for k in c.keywords if k.arg == "reasoning_delimiters"]
        for n, (text, gold) in enumerate(zip(texts, golds, strict=True)):
            right = None if worth[n] is None else worth[n] > 0
            case: dict[str, Any] = {"gold": gold, "pred": text, "right": right}
            case["reward"] = name.partition(".")[0]
            yield {"id": f"{name}[{n}]", **case, **{k.arg or "": literal(k.value) for k in marks}}


def _asserted(test: ast.FunctionDef) -> Iterator[tuple[int, float | None]]:
    for node in ast.walk(test):
        match node:
            case ast.Assert(
                test=ast.Compare(left=ast.Subscript(slice=n), comparators=[ast.Constant() as right])
            ):
                yield literal(n), literal(right)
            case ast.Assert(test=ast.Compare(comparators=[ast.List() as right])):
                yield from enumerate(literal(right))


def areal(clone: Clone) -> Iterator[dict[str, Any]]:
    """Each call of a reward with what is asserted of it; null where any float will do."""
    for file in ("test_math_verify_reward", "test_clevr_reward"):
        for name, test in tests_of(clone.text(f"tests/{file}.py")):
            known: dict[str, Any] = {}
            claims, judged = [], []
            for node in ast.walk(test):
                match node:
                    case ast.Assign(targets=[ast.Name(id=variable)], value=ast.Constant(value=v)):
                        known[variable] = v
                    case ast.Assert(test=claim):
                        claims.append(claim)
            for call in calls(test):
                if ast.unparse(call.func).endswith(("reward_fn", ".verify")):
                    judged.append(call)
            for n, (call, claim) in enumerate(zip(judged, claims, strict=True)):
                given = {k.arg: literal(k.value, known) for k in call.keywords}
                if call.args:
                    given["completions"], given["answer"] = (literal(a, known) for a in call.args)
                match claim:
                    case ast.Compare(ops=[ast.Eq()], comparators=[ast.Constant(value=worth)]):
                        right = worth == 1.0
                    case _:
                        right = None
                yield {
                    "id": f"{name}[{n}]",
                    "reward": ast.unparse(call.func).removeprefix("worker."),
                    "gold": given["answer"],
                    "pred": given["completions"],
                    "right": right,
                }


def safetensors(clone: Clone) -> Iterator[dict[str, Any]]:
    """Files that the tests hold as byte strings, with the error that is expected, if one is."""
    source = clone.text("safetensors/src/tensor.rs")
    for name, body in re.findall(r"\n    fn (test_\w+)\(\) \{\n(.*?)\n    \}\n", source, re.S):
        pieces = re.split(r'let serialized = b"', body)[1:]
        for n, piece in enumerate(pieces):
            raw = re.match(r'((?:[^"\\]|\\.)*)"', piece, re.S)
            assert raw
            content = ast.literal_eval(f'b"{raw[1]}"')
            error = re.search(r"Err\(SafeTensorError::(\w+)", piece)
            yield {
                "id": f"{name}[{n}]",
                "file": base64.b64encode(content).decode(),
                "error": error[1] if error else None,
            }


def archive(clone: Clone, folder: str, target: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:xz", format=tarfile.PAX_FORMAT) as tar:
        for name in clone.names(folder):
            content = clone.bytes(f"{folder}/{name}")
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    target.write_bytes(buffer.getvalue())


def write(target: Path, cases: Iterator[dict[str, Any]]) -> None:
    target.write_text("".join(json.dumps(case, ensure_ascii=False) + "\n" for case in cases))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("clones", type=Path)
    clones = parser.parse_args().clones
    of = {name: Clone(clones, name) for name in COMMITS}

    def folder(name: str, licence: str) -> Path:
        place = HERE / name.lower().replace("-", "_")
        place.mkdir(exist_ok=True)
        (place / "LICENSE").write_bytes(of[name].bytes(licence))
        return place

    write(folder("Math-Verify", "LICENCE") / "cases.jsonl", math_verify(of["Math-Verify"]))
    write(folder("trl", "LICENSE") / "cases.jsonl", trl(of["trl"]))
    write(folder("AReaL", "LICENSE") / "cases.jsonl", areal(of["AReaL"]))
    write(folder("safetensors", "LICENSE") / "cases.jsonl", safetensors(of["safetensors"]))
    strings = of["big-list-of-naughty-strings"].bytes("blns.json")
    (folder("big-list-of-naughty-strings", "LICENSE") / "blns.json").write_bytes(strings)
    filters = of["lm-evaluation-harness"].bytes("lm_eval/tasks/gsm8k/gsm8k.yaml")
    (folder("lm-evaluation-harness", "LICENSE.md") / "gsm8k.yaml").write_bytes(filters)
    suite = of["JSONTestSuite"]
    archive(suite, "test_parsing", folder("JSONTestSuite", "LICENSE") / "test_parsing.tar.xz")
    bad = of["parquet-testing"]
    archive(bad, "bad_data", folder("parquet-testing", "LICENSE.txt") / "bad_data.tar.xz")


if __name__ == "__main__":
    main()
