"""Certificates of a run (certificates.jsonl), checked in whole numbers here and by Coq.

`is_accepted` and `seal` are `accepted` and `seal` of proofs/Checked.v, to the bit.
"""

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

from ogrpo.report.run_dir import read_as

STAKES = (1, 2, 4, 8, 16)
"""`ogrpo.loop.certify.RATES`, in twentieths."""
UNIT = 1 << 192
FINEST = 1 << 24
"""The least denominator of a bound: one of the values' own."""

HEAD = """\
(** Certificates of the run {name}, written by ogrpo certify --coq. They are proved where

      coqc -Q PROOFS OGRPO {file}

    ends without an error, PROOFS being the folder proofs/ of the project after `make -C proofs`.

    What this file does not prove, and whoever reads it has to believe:
    - that the draws were made, in this order, independently given the past, from the two policies
      whose log-probs were recorded, at prompts of one law, and that no update had seen them;
    - that the values are those of exact log-probs: they were computed in float32;
    - that the digests are of these policies' weights, which the seal ties to the numbers against
      damage and not against whoever computes it anew;
    - anything of a period that is not here: each statement is wrong with a chance of at most
      delta, and all of N together with one of at most N delta.

    bound / scale is at most the gain of the expected reward from the old weights to the new,
    averaged over the prompts drawn; gains / scale are the values of the draws. *)
From OGRPO Require Import Checked.
From Coq Require Import ZArith List.
Import ListNotations.
Open Scope Z_scope.
"""
PERIOD = """
Definition step{step} := Period
  {old:#x} {new:#x}
  {delta.numerator} {delta.denominator} {scale} ({bound})
  [{gains}].
Theorem step{step}_certified : certified step{step}.
Proof. apply (@accepted_certified _ {seal}). vm_cast_no_check (eq_refl true). Qed.
"""


class Claim(NamedTuple):
    """A period's certificate: the gain from `old` to `new` weights is at least bound/scale.

    `gains`/`scale` are the values of its draws, in order; `old` and `new` are SHA-256 of the
    trained weights, 0 for weights that were no longer held.
    """

    step: int
    old: int
    new: int
    delta: Fraction
    scale: int
    bound: int
    gains: tuple[int, ...]


def ledger(
    step: int,
    bound: float,
    delta: float,
    gains: Iterable[float],
    old_weights: str,
    new_weights: str,
) -> dict[str, Any]:
    """Returns a line of certificates.jsonl: the values as whole numbers over one denominator.

    Args:
      step: at whose end the period ended.
      bound: the certificate's; below it by less than 1/scale is what the line claims.
      delta: chance of being wrong.
      gains: finite values.
      old_weights: SHA-256, in hexadecimal digits or empty.
      new_weights: as old_weights.
    """
    ratios = [gain.as_integer_ratio() for gain in gains]
    scale = max(FINEST, *(below for _, below in ratios))  # powers of two, all of them
    whole = [above * (scale // below) for above, below in ratios]
    numbers = {"scale": scale, "bound": math.floor(bound * scale), "gains": whole}
    weights = {"old_weights": old_weights, "new_weights": new_weights}
    return {"step": step, "delta": delta, **numbers, **weights}


def claim(line: dict[str, Any]) -> Claim:
    """Reads a line of `ledger`; delta is the decimal number that was asked for.

    Raises:
      KeyError, TypeError, ValueError, ZeroDivisionError: it is no such line.
    """
    old, new = (int("0" + line[name], 16) for name in ("old_weights", "new_weights"))
    whole = (line["step"], line["scale"], line["bound"], *line["gains"])
    if not all(type(number) is int for number in whole):
        raise ValueError("its numbers are not all whole")
    step, scale, bound, *gains = whole
    delta, least = Fraction(str(line["delta"])), min(gains, default=0)
    if step < 0 or not 0 < delta < 1 or bound > scale or least < -scale:
        raise ValueError("a step below 0, a delta outside (0, 1), or a bound or gain out of range")
    return Claim(step, old, new, delta, scale, bound, tuple(gains))


def read_claims(path: Path) -> list[Claim]:
    """Reads certificates.jsonl; [] where there is none.

    Raises:
      ValueError: a line is no certificate; names it.
    """
    return read_as(path, claim, "certificate")


def is_accepted(claim: Claim) -> bool:
    """Whether the wealth against the bound, rounded down at each draw, reaches 1/delta."""
    if claim.scale <= 0 or claim.bound <= -claim.scale or claim.delta <= 0:
        return False
    total, full = 0, 20 * claim.scale
    for stake in STAKES:
        won = UNIT
        for gain in claim.gains:
            won = won * (full + stake * gain) // (full + stake * claim.bound)
        total += won
    return total * claim.delta.numerator >= len(STAKES) * UNIT * claim.delta.denominator


def seal(claim: Claim) -> int:
    """Returns a checksum that any change of one number changes."""
    total, (_, old, new, delta, *numbers, gains) = 0, claim
    for number in (old, new, delta.numerator, delta.denominator, *numbers, *gains):
        total = (total * 18446744073709551629 + number) % (1 << 320)
    return total


def coq_file(claims: Sequence[Claim], name: str, file: str) -> str:
    """Returns the Coq source that proves a run's claims; its head says what it leaves unproved."""
    listed = [each._asdict() | {"gains": "; ".join(map(str, each.gains))} for each in claims]
    periods = (
        PERIOD.format(**row, seal=seal(each)) for row, each in zip(listed, claims, strict=True)
    )
    name = name.translate(str.maketrans("", "", '(*)"'))  # which begin and end comments and texts
    return "".join([HEAD.format(name=name, file=file), *periods])
