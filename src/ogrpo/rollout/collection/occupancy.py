"""Seconds of threads by activity."""

from collections import Counter, defaultdict
from collections.abc import Callable


class Occupancy:
    """Seconds by activity, summed over those who are at it; what is under way counts too.

    Args:
        clock: seconds since any fixed moment.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._start = self._last = clock()
        self._active: Counter[str] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def enter(self, activity: str) -> None:
        """One more is at it."""
        self._account()
        self._active[activity] += 1

    def leave(self, activity: str) -> None:
        """One less is at it."""
        self._account()
        self._active[activity] -= 1

    def seconds(self, activity: str) -> float:
        """The seconds spent at it so far, by all together."""
        self._account()
        return self._seconds[activity]

    def active(self, *activities: str) -> int:
        """Returns how many are at one of these now."""
        return sum(self._active[activity] for activity in activities)

    def elapsed(self) -> float:
        """Seconds since the start."""
        self._account()
        return self._last - self._start

    def _account(self) -> None:
        now = self._clock()
        for activity, count in self._active.items():
            self._seconds[activity] += count * (now - self._last)
        self._last = now
