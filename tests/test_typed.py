"""A type checker sees the public names of the installed wheel, with their types."""

import json
import os
import subprocess
import sys
from zipfile import ZipFile

import pytest

from tests.system.test_extras import ROOT, build

pytest.importorskip("pyright", reason="no pyright here: pip install -e '.[lint]'")
pytestmark = pytest.mark.slow

PROGRAM = """
import ogrpo
from ogrpo import ALGORITHMS, TokenBatch, sequence_mean, token_loss

reveal_type(ALGORITHMS["grpo"])
reveal_type(sequence_mean)
sequence_mean("values")
ogrpo.sequence_men
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("typed")
    with ZipFile(build(ROOT, folder / "wheel")) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def pyright(site, *arguments: object) -> dict:
    environment = {**os.environ, "PYTHONPATH": str(site)}
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    command += map(str, arguments)
    here = site.parent  # no configuration of ours
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=here)
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def test_a_type_checker_sees_the_names_and_their_types(site):
    program = site.parent / "program.py"
    program.write_text(PROGRAM)
    diagnostics = pyright(site, program)["generalDiagnostics"]
    said = [
        (x["range"]["start"]["line"] + 1, x.get("rule", "reveal"), x["message"])
        for x in diagnostics
        if x.get("rule") != "reportUnusedExpression"
    ]
    wrong = [(7, "reportCallIssue"), (8, "reportAttributeAccessIssue")]
    lines = [(line, rule) for line, rule, _ in said]
    assert lines == [(5, "reveal"), (6, "reveal"), *wrong], said
    assert '"Algorithm"' in said[0][2]
    assert "(values: Array, mask: Array" in said[1][2]


def test_every_public_name_has_a_type(site):
    """Also that the wheel has a py.typed, without which the checker refuses to answer."""
    report = pyright(site, "--verifytypes", "ogrpo", "--ignoreexternal")
    summary = report["typeCompleteness"]
    assert summary["pyTypedPath"] == str(site / "ogrpo" / "py.typed")
    ours = {x["name"] for x in summary["symbols"] if x["isExported"]}
    assert {"ogrpo.core.aggregate.sequence_mean", "ogrpo.core.objectives.TokenBatch"} <= ours
    untyped = [
        x["name"]
        for x in summary["symbols"]
        if x["isExported"] and not x["isTypeKnown"] and x["name"].startswith("ogrpo.core")
    ]
    assert untyped == []
