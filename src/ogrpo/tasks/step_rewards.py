"""What each step of a solution earns: its line, checked against that of the worked solution."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from ogrpo.tasks.problems import MARKER

_END = re.compile(rf";|{re.escape(MARKER)}")
_LINE = re.compile(r"\s*(\d+)\s*([-+*/])\s*(\d+)\s*=\s*(\d+)\s*")


class StepReward(NamedTuple):
    """A step of a text: the index of the character behind it, and what it earned."""

    end: int
    reward: float


def line_rewards(text: str, solution: str) -> list[StepReward]:
    """1/K for each line that is right, K the lines of the worked solution; 0 for any other line.

    A line ends at `;` or `####`. It is right if it is an equation of two numbers that holds, and
    its result is that of the worked solution's line of the same number. So a text earns at most 1,
    however many lines it has.

    Example:
      >>> line_rewards("7 + 5 = 12 ; 12 - 3 = 8 #### 8", "7 + 5 = 12 ; 12 - 3 = 9 #### 9")
      [StepReward(end=12, reward=0.5), StepReward(end=28, reward=0.0)]

    Raises:
      ValueError: the worked solution has a line that is no equation, or none at all.
    """
    wanted = [result for _, result in _lines(solution)]
    if not wanted or None in wanted:
        raise ValueError(
            f"the worked solution {solution!r:.80} has no lines such as `7 + 5 = 12 ;` before its"
            f" {MARKER}: rewards of steps need them"
        )
    return [
        StepReward(end, (result is not None and wanted[n : n + 1] == [result]) / len(wanted))
        for n, (end, result) in enumerate(_lines(text))
    ]


def _lines(text: str) -> Iterator[tuple[int, int | None]]:
    """The end of each line, and its result; None where it is no equation, or a wrong one."""
    begin = 0
    for mark in _END.finditer(text):
        yield mark.end(), _result(text[begin : mark.start()])
        begin = mark.end()


def _result(line: str) -> int | None:
    parts = _LINE.fullmatch(line)
    if parts is None:
        return None
    left, right, result = (int(parts[n]) for n in (1, 3, 4))
    holds = {
        "+": left + right == result,
        "-": left - right == result,
        "*": left * right == result,
        "/": right != 0 and left == right * result,
    }
    return result if holds[parts[2]] else None
