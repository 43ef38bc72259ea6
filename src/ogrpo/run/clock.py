"""The wall time of a run by its parts, with the time of compiling in each."""

import time
from dataclasses import dataclass, field
from itertools import pairwise

import jax

COMPILING = "/jax/core/compile/backend_compile_duration"
"""Event of JAX at the end of each compilation, with its seconds; programs read from the cache of
compiled programs take few."""
_compiled = [0.0]


def _add(event: str, duration_secs: float, **_: object) -> None:
    if event == COMPILING:
        _compiled[0] += duration_secs


jax.monitoring.register_event_duration_secs_listener(_add)


def compiled() -> float:
    """Returns the seconds of this process's compilations so far, of all threads together."""
    return _compiled[0]


@dataclass
class Clock:
    """Marks of the moments at which a part of a run ended."""

    marks: list[tuple[str, float, float]] = field(
        default_factory=lambda: [("", time.monotonic(), compiled())]
    )
    """Part, `time.monotonic()` at its end, and the seconds of compiling so far."""

    def mark(self, part: str) -> None:
        """Ends a part of the run, which began where the one before ended."""
        self.marks.append((part, time.monotonic(), compiled()))

    def split(self) -> list[tuple[str, float, float]]:
        """Returns part, seconds and seconds of compiling among them; what follows is the rest."""
        rest = ("model and page written", time.monotonic(), compiled())
        marks = [*self.marks, rest]
        return [
            (part, end - begin, after - before)
            for (_, begin, before), (part, end, after) in pairwise(marks)
        ]
