"""Reads completions that anybody logged: a row each, checked, counted and put into groups.

    rows -> checked (others: refused, by reason) -> repeats left out -> groups of G of one prompt

A row has columns by these names:

    prompt_ids | prompt       token ids; or a text or chat messages, rendered as a task's are
    token_ids | completion    token ids, the end token included; or a text
    log_probs                 of each token at the temperature it was drawn with; may be absent
    reward                    a number, or NaN where it was not judged
    temperature, finish_reason, policy_version | version, policy | policy_name    may be absent

The files of a run's replay buffer have these columns, and `without_loss`, stretches of tokens.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from math import isclose, isnan
from typing import Any, NamedTuple

import numpy as np

from ogrpo.data.replay.columns import ANOTHER, Experience
from ogrpo.data.replay.segments import COLUMNS
from ogrpo.protocol import BoolArray, Completion, FloatArray, Group, IntArray

ABOVE_ZERO, IMPOSSIBLE = 1e-4, -9999.0
"""Bounds of a log-prob: what rounding lifts it above 0 by, and what engines write for -inf."""
NO_CHANCE = -40.0
"""Log of the chance below which a completion is not drawn twice: its repeat is the same row."""
LARGEST = 2**31 - 1


class RefusedRow(ValueError):
    """A row that cannot be learned from; `reason` is what it is counted by."""

    def __init__(self, reason: str, what: str) -> None:
        super().__init__(what)
        self.reason = reason


@dataclass(frozen=True, kw_only=True)
class LogTerms:
    """Bounds that the rows of a log are held to; None is no bound.

    Attributes:
      group_size: completions of a group, `G`.
      encode_prompt: a text or messages -> int32 token ids.
      encode: the text of a completion -> int32 token ids; None leaves texts unread, with a 0 for
        each log-prob, or for each letter and the end.
      eos_id: ends the text of a completion that was not cut off.
      temperature: of the log-probs; rows that do not say are taken to be drawn at it.
      vocab_size: token ids are below it.
      prompt_length: tokens of a prompt at most.
      completion_length: tokens of a completion at most.
      held_out: bytes of the ids of prompts that are not trained on.
    """

    group_size: int
    encode_prompt: Callable[[Any], IntArray]
    encode: Callable[[str], IntArray] | None
    eos_id: int | None = None
    temperature: float | None = None
    vocab_size: int | None = None
    prompt_length: int | None = None
    completion_length: int | None = None
    held_out: frozenset[bytes] = frozenset()


class LoggedRow(NamedTuple):
    """A row that was accepted; its log-probs are NaN where it has none."""

    prompt_ids: IntArray
    completion: Completion
    reward: float
    policy: str


def lacks_log_probs(completion: Completion) -> bool:
    """Whether the log does not say with which chances the tokens were drawn."""
    return bool(np.isnan(completion.log_probs).any())


@dataclass
class Log:
    """The groups of a log, and what became of its rows.

    Attributes:
      experiences: whole groups in the order in which they were completed; `problem` numbers the
        prompts in the order of their first rows.
      rows: all rows.
      refused: rows by reason.
      examples: of each reason the place and the words of the first row.
      repeats: rows that say again what an earlier one says.
      prompts: distinct prompts of the rows that were accepted.
      remainder: accepted rows beyond the last whole group of their prompt.
      policies: accepted rows by policy and version.
      without_log_probs: accepted rows without log-probs.
    """

    experiences: list[Experience] = field(default_factory=list)
    rows: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    repeats: int = 0
    prompts: int = 0
    remainder: int = 0
    policies: Counter[tuple[str, int]] = field(default_factory=Counter)
    without_log_probs: int = 0

    @property
    def accepted(self) -> int:
        """Rows that were neither refused nor repeats."""
        return self.rows - self.repeats - sum(self.refused.values())

    def counts(self) -> list[tuple[str, int]]:
        """Returns a label and a count for all rows that are in no group."""
        return [
            *((f"rows refused: {self.examples[name]}", n) for name, n in self.refused.items()),
            ("rows that repeat an earlier one in every column, left out", self.repeats),
            ("rows beyond the last whole group of their prompt, left out", self.remainder),
        ]


def read_log(rows: Iterable[tuple[Mapping[str, Any], str]], terms: LogTerms) -> Log:
    """Reads rows, each with the place where it stands, into groups.

    A row alike in every column is a repeat, unless its log-probs make drawing it twice likely.

    Raises:
      ValueError: no row can be learned from; names the first of each reason.
    """
    log, seen = Log(), set[bytes]()
    waiting: dict[bytes, list[LoggedRow]] = {}
    problems: dict[bytes, int] = {}
    for columns, source in rows:
        log.rows += 1
        try:
            row = to_row(columns, terms)
        except RefusedRow as error:
            log.refused[error.reason] += 1
            log.examples.setdefault(error.reason, f"{error.reason} ({source}: {error})")
            continue
        digest = blake2b(repr(sorted(columns.items())).encode(), digest_size=16).digest()
        if digest in seen:
            # No draw of its own, unless two are likely (False of NaN); ours number each completion.
            likely = float(row.completion.log_probs.sum(dtype=np.float64)) > NO_CHANCE
            if not likely or {*COLUMNS} <= columns.keys():
                log.repeats += 1
                continue
        seen.add(digest)
        version = row.completion.policy_version
        log.policies[row.policy, version] += 1
        log.without_log_probs += lacks_log_probs(row.completion)
        prompt = row.prompt_ids.tobytes()
        problem = problems.setdefault(prompt, len(problems))
        members = waiting.setdefault(prompt, [])
        members.append(row)
        if len(members) == terms.group_size:
            group = Group(row.prompt_ids, tuple(one.completion for one in members))
            rewards = np.array([one.reward for one in members], np.float32)
            log.experiences.append(Experience(group, rewards, problem))
            del waiting[prompt]
    log.prompts, log.remainder = len(problems), sum(map(len, waiting.values()))
    if not log.accepted:
        reasons = "".join(f"\n  {n} refused: {log.examples[r]}" for r, n in log.refused.items())
        raise ValueError(f"none of {log.rows} rows can be learned from:{reasons}")
    return log


def to_row(columns: Mapping[str, Any], terms: LogTerms) -> LoggedRow:
    """Checks a row.

    Raises:
      RefusedRow: it lacks a column or has a wrong value in one, or does not fit the terms.
    """
    ids = columns.get("prompt_ids")
    prompt = _encoded("prompt", columns, terms.encode_prompt) if ids is None else _ids(ids, terms)
    _check_length("prompt", prompt, terms.prompt_length)
    if prompt.tobytes() in terms.held_out:
        raise RefusedRow("held out", "its prompt is one that is evaluated on")
    log_probs = _list("log_probs", columns.get("log_probs"), (float, int, np.floating))
    finish = columns.get("finish_reason")
    if finish not in (None, "stop", "length"):
        raise RefusedRow("finish_reason", f"{finish!r:.60}; give stop or length")
    if (ids := columns.get("token_ids")) is not None:
        tokens = _ids(ids, terms)
    else:
        text = columns.get("completion")
        if not isinstance(text, str):
            what = f"token_ids and completion are None and {text!r:.60}; give a list or a text"
            raise RefusedRow("completion", what)
        if terms.encode is None:
            tokens = np.zeros(len(text) + 1 if log_probs is None else len(log_probs), np.int32)
        else:
            tokens = _encoded("completion", columns, terms.encode)
        eos_id = None if finish == "length" else terms.eos_id
        whole = log_probs is None or len(log_probs) == len(tokens) + 1
        if eos_id is not None and whole and eos_id not in tokens[-1:]:
            tokens = np.append(tokens, np.int32(eos_id))
    _check_length("completion", tokens, terms.completion_length)
    if finish is None:
        finish = "stop" if terms.eos_id in (None, tokens[-1]) else "length"
    temperature = columns.get("temperature")
    ours = 1.0 if terms.temperature is None else terms.temperature
    temperature = ours if temperature is None else _number("temperature", temperature)
    close = isclose(temperature, ours, rel_tol=1e-6)  # a file may hold it as float32
    if terms.temperature is not None and not close:
        what = f"{temperature:g} for {terms.temperature:g}; give --rollout.temperature"
        raise RefusedRow("temperature", what)
    reward = columns.get("reward", "absent")
    reward = float("nan") if reward is None else _number("reward", reward, unjudged=True)
    version = columns.get("policy_version")
    version = columns.get("version") if version is None else version
    version = ANOTHER if version is None else version
    if type(version) is not int or not ANOTHER <= version <= LARGEST:
        raise RefusedRow("version", f"{version!r:.60}; give a whole number from 0")
    completion = Completion(
        token_ids=tokens,
        log_probs=_log_probs(log_probs, len(tokens)),
        policy_version=version,
        temperature=temperature,
        finish_reason=finish,
        loss_mask=_loss_mask(columns.get("without_loss"), len(tokens)),
    )
    policy = str(columns.get("policy") or columns.get("policy_name") or "")
    return LoggedRow(prompt, completion, reward, policy)


def _list(name: str, values: Any, kinds: tuple[type, ...]) -> list[Any] | None:
    if values is None:
        return None
    is_list = isinstance(values, list | tuple)
    if not is_list or not all(isinstance(x, kinds) and not isinstance(x, bool) for x in values):
        raise RefusedRow(name, f"{values!r:.60}; give a list of numbers")
    return list(values)


def _ids(values: Any, terms: LogTerms) -> IntArray:
    ids, most = _list("token ids", values, (int,)) or [], (terms.vocab_size or LARGEST) - 1
    if wrong := [x for x in ids if not 0 <= x <= most]:
        raise RefusedRow("token ids", f"{wrong[0]}; give numbers from 0 to {most}")
    return np.array(ids, np.int32)


def _encoded(name: str, columns: Mapping[str, Any], encode: Callable[[Any], IntArray]) -> IntArray:
    if columns.get(name) is None:
        raise RefusedRow(name, f"there is none; the columns are {', '.join(sorted(columns))}")
    try:
        return encode(columns[name])
    except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
        raise RefusedRow(name, str(error)) from error


def _check_length(name: str, ids: IntArray, most: int | None) -> None:
    if not len(ids):
        raise RefusedRow(name, "without a token")
    if most is not None and len(ids) > most:
        option = "--data.prompt-length" if name == "prompt" else "--rollout.max-tokens"
        raise RefusedRow(f"{name} length", f"{len(ids)} tokens for at most {most}; raise {option}")


def _number(name: str, value: Any, *, unjudged: bool = False) -> float:
    if not isinstance(value, bool | int | float) or abs(value) > float(np.finfo(np.float32).max):
        raise RefusedRow(name, f"{value!r:.60}; give a finite number")
    if isnan(value) and not unjudged:
        raise RefusedRow(name, "nan; give a finite number")
    return float(value)


def _log_probs(values: list[float] | None, length: int) -> FloatArray:
    """Returns log-probs, NaN where there are none."""
    if values is None:
        return np.full(length, np.nan, np.float32)
    if len(values) != length:
        raise RefusedRow("log_probs", f"{len(values)} for {length} tokens; give one for each")
    if wrong := [x for x in values if not IMPOSSIBLE < x <= ABOVE_ZERO]:
        raise RefusedRow("log_probs", f"{wrong[0]}; give logarithms of chances above 0")
    return np.array(values, np.float32)


def _loss_mask(stretches: Any, length: int) -> BoolArray | None:
    """Returns the tokens that carry loss, of the stretches of those that do not."""
    if not stretches:
        return None
    mask = np.ones(length, np.bool_)
    try:
        for stretch in stretches:
            start, end = stretch["start"], stretch["end"]
            if not 0 <= start <= end <= length:
                raise ValueError(f"[{start}, {end}) of {length} tokens")
            mask[start:end] = False
    except (TypeError, KeyError, IndexError, ValueError) as error:
        raise RefusedRow("without_loss", f"{stretches!r:.60}; {error}") from error
    return mask
