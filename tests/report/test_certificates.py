"""The claims of certificates.jsonl are those that whole numbers prove, never more."""

import json
from fractions import Fraction

import numpy as np
import pytest

from ogrpo.cli.main import main
from ogrpo.config.train import Certification
from ogrpo.loop.certify import RATES, certify
from ogrpo.report import certificates
from ogrpo.report.certificates import claim, coq_file, is_accepted, ledger, read_claims, seal
from ogrpo.report.run_dir import RunDir
from tests.run.small_run import go

WEIGHTS = "ab" * 32, "cd" * 32


def line_of(gains, delta=0.05):
    return ledger(20, float(certify(gains, delta).bound), delta, gains.tolist(), *WEIGHTS)


@pytest.mark.parametrize("seed", range(40))
def test_the_bound_of_doubles_is_never_above_what_whole_numbers_accept(seed):
    """And hardly below: the claim and 1e-6 more is refused, if the bound is above its least."""
    rng = np.random.default_rng(seed)
    mean, spread = rng.choice([-0.02, 0.01, 0.2]), rng.choice([0.01, 0.3, 2.0])
    drawn = rng.normal(mean, spread, 10 ** (seed % 4))
    gains = np.clip(drawn, -1, 31).astype(np.float32).astype(np.float64)
    for delta in (0.05, 0.001):
        stated = claim(json.loads(json.dumps(line_of(gains, delta))))
        assert stated.delta == Fraction(str(delta))
        assert [x / stated.scale for x in stated.gains] == gains.tolist()
        assert is_accepted(stated) == (stated.bound > -stated.scale)
        if stated.bound > -0.99 * stated.scale:
            assert not is_accepted(stated._replace(bound=stated.bound + stated.scale // 10**6))


@pytest.mark.parametrize(
    "changes",
    [
        {"scale": -1, "bound": -1, "gains": (-5,) * 20},  # as if each draw had gained 5
        {"scale": 1, "bound": -20, "gains": (1,) * 20},
        {"scale": 1, "bound": -2, "gains": (1,) * 20},
        {"delta": Fraction(-1, 20)},
    ],
)
def test_numbers_that_no_certificate_has_are_not_accepted(changes):
    stated = claim(line_of(np.full(200, 0.9)))
    assert is_accepted(stated)
    assert not is_accepted(stated._replace(**changes))


WRONG = [
    *(("gains", None), ("scale", 1e3), ("delta", "1/0"), ("old_weights", "z"), ("step", -1)),
    *(("delta", 1.5), ("new_weights", "-1"), ("old_weights", 0), ("bound", 1 << 2000)),
    ("gains", [-(1 << 40)] * 20),  # whose wealth would be below 0, and above it at every other draw
]


@pytest.mark.parametrize(("field", "value"), WRONG)
def test_a_line_that_is_no_certificate_is_named(tmp_path, field, value):
    file, line = tmp_path / "certificates.jsonl", line_of(np.full(9, 0.5))
    file.write_text(f"{json.dumps(line)}\n{json.dumps(line | {field: value})}\n")
    with pytest.raises(ValueError, match=r"certificates\.jsonl, line 2, is no certificate .*mend"):
        read_claims(file)


def test_a_runs_name_does_not_end_the_comment_that_it_stands_in():
    text = coq_file([], 'a "(*run*)', "certificates.v")
    assert text.startswith("(** Certificates of the run a run, written")
    assert (text.count("(*"), text.count("*)"), text.count('"')) == (1, 1, 0)


def test_stakes_are_the_loops():
    assert [stake / 20 for stake in certificates.STAKES] == list(RATES)


def test_a_seal_changes_with_every_number():
    stated = claim(line_of(np.linspace(-0.5, 0.9, 50)))
    others = [stated._replace(**{x: getattr(stated, x) + 1}) for x in ("old", "new", "scale")]
    others += [stated._replace(delta=Fraction(1, 21)), stated._replace(bound=stated.bound - 1)]
    others += [stated._replace(gains=stated.gains[:n] + stated.gains[n + 1 :]) for n in range(50)]
    assert len({seal(each) for each in (stated, *others)}) == 56


def test_a_run_keeps_what_proves_its_certificates(tmp_path, capsys):
    terms, run = Certification(delta=0.9, completions=16), RunDir(tmp_path / "run")
    go(run.path, certificate=terms)
    text, records = run.certificates.read_text(), run.read_metrics()
    stated = {r["step"]: r["certificate/bound"] or 0 for r in records}
    bounds = {step: bound for step, bound in stated.items() if bound > 0}
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["step"] for line in lines] == [*bounds] == [3, 4]
    for line in lines:
        assert 0 <= bounds[line["step"]] - line["bound"] / line["scale"] < 2**-24
        assert len({line["old_weights"], line["new_weights"]}) == 2
    go(run.path, certificate=terms, resume_from=2)
    assert run.certificates.read_text() == text

    assert main(["certify", str(run.path), "--coq"]) == 0
    assert "step 4: a gain of 0.17" in capsys.readouterr().out
    written = (run.path / "certificates.v").read_text()
    assert "What this file does not prove" in written[:400]
    assert f"{int(lines[0]['old_weights'], 16):#x}" in written
    run.certificates.write_text(text.replace(f'"bound": {lines[0]["bound"]}', '"bound": 16000000'))
    assert main(["certify", str(run.path)]) == 2
    refused = capsys.readouterr()
    assert "the draws of step 3 do not prove its bound" in refused.err
    assert refused.out == ""
