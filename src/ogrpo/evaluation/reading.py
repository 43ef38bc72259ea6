"""Reads a file of answers; whatever is wrong with it is told with file and line."""

import json
from collections.abc import Mapping
from math import isfinite, nan
from pathlib import Path
from typing import Any, get_args

from ogrpo.evaluation.answers import AnswerRecord
from ogrpo.protocol import FinishReason

_TYPES: dict[str, type | tuple[type, ...]] = {
    "problem": int,
    "sample": int,
    "source": str,
    "prompt": (str, list),
    "columns": dict,
    "text": str,
    "tokens": int,
    "token_ids": list,
    "finish_reason": str,
    "rewards": dict,
    "reward": (int, float, type(None)),
    "failed": bool,
}


def read_answers(path: str | Path) -> list[AnswerRecord]:
    """Read the answers that `AnswerFile` wrote.

    Raises:
        ValueError: a line is not such an object, two are the same sample of the same problem, they
            have different rewards, or there is none; the message names file and line.
        FileNotFoundError: there is no such file.
    """
    answers: list[AnswerRecord] = []
    lines: dict[tuple[int, int], int] = {}
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            where = f"{path}:{number}"
            answer = _record(_object(line, where), where)
            earlier = lines.setdefault((answer.problem, answer.sample), number)
            if earlier != number:
                raise ValueError(
                    f"{where}: sample {answer.sample} of problem {answer.problem} is line {earlier}"
                    " already: two evaluations are in one file; keep one"
                )
            _check_rewards(answers[:1], answer, where)
            answers.append(answer)
    if not answers:
        raise ValueError(f"{path} holds no answer: give a file that `ogrpo eval --output` wrote")
    return answers


def _object(line: bytes, where: str) -> Mapping[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        cut = "" if line.endswith(b"\n") else ": it is cut short; take the line out"
        why = str(error) if isinstance(error, ValueError) else "nested too deeply"
        raise ValueError(f"{where} is not a line of JSON{cut} ({why})") from error
    if not isinstance(found, dict):
        raise ValueError(f"{where} is {found!r:.40}; an answer is a JSON object")
    return found


def _record(found: Mapping[str, Any], where: str) -> AnswerRecord:
    for name, kind in _TYPES.items():
        _check_type(found, name, kind, where)
    _check_values(found, where)
    prompt = found["prompt"]
    return AnswerRecord(
        problem=found["problem"],
        sample=found["sample"],
        source=found["source"],
        prompt=prompt if isinstance(prompt, str) else tuple(prompt),
        columns=found["columns"],
        text=found["text"],
        token_ids=tuple(found["token_ids"]),
        finish_reason=found["finish_reason"],
        values={name: _number(value) for name, value in found["rewards"].items()},
        reward=_number(found["reward"]),
        failed=found["failed"],
    )


def _check_type(
    found: Mapping[str, Any], name: str, kind: type | tuple[type, ...], where: str
) -> None:
    if name not in found:
        raise ValueError(f"{where} lacks {name!r}: give a file that `ogrpo eval --output` wrote")
    value = found[name]
    wrong = isinstance(value, bool) and kind is not bool
    if wrong or not isinstance(value, kind):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        names = " or ".join("null" if k is type(None) else k.__name__ for k in kinds)
        raise ValueError(f"{where}: {name!r} is {value!r:.60}; it is a {names}")


def _check_values(found: Mapping[str, Any], where: str) -> None:
    if found["problem"] < 0 or found["sample"] < 0:
        raise ValueError(f"{where}: 'problem' and 'sample' count from 0")
    if found["finish_reason"] not in get_args(FinishReason):
        raise ValueError(
            f"{where}: 'finish_reason' is {found['finish_reason']!r:.40}; it is one of "
            f"{', '.join(get_args(FinishReason))}"
        )
    ids = found["token_ids"]
    if not all(type(token) is int for token in ids) or len(ids) != found["tokens"]:
        raise ValueError(f"{where}: 'token_ids' are not {found['tokens']} whole numbers")
    if isinstance(found["prompt"], list) and not all(isinstance(m, dict) for m in found["prompt"]):
        raise ValueError(f"{where}: 'prompt' is a list of something else than messages")
    for name, value in (*found["rewards"].items(), ("the weighted sum", found["reward"])):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (number and abs(value) < 1e300 and isfinite(value)):
            raise ValueError(f"{where}: reward {name!r} is {value!r:.40}; it is a number or null")


def _check_rewards(first: list[AnswerRecord], answer: AnswerRecord, where: str) -> None:
    if first and first[0].values.keys() != answer.values.keys():
        raise ValueError(
            f"{where} has the rewards {sorted(answer.values)} and the first line "
            f"{sorted(first[0].values)}: two evaluations are in one file; keep one"
        )


def _number(value: float | None) -> float:
    return nan if value is None else float(value)
