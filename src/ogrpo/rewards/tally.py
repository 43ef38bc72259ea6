"""Counts of a pool: what scoring has cost, how it came out, from several threads."""

import contextlib
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ogrpo.rewards.scores import KINDS, Failure

_FAILED = {kind: f"failed/{kind.replace(' ', '_')}" for kind in KINDS}
_NONE = {"calls": 0, "completions": 0, "seconds": 0.0, "repeated": 0, "failed": 0}
_NONE |= dict.fromkeys(_FAILED.values(), 0)


class Tally:
    """Counts since its making, for each of some rewards by name."""

    def __init__(self, names: Sequence[str]) -> None:
        self._before: dict[str, float] = {}
        self._lock = threading.Lock()
        self._by_reward = {name: {**_NONE} for name in names}
        self._completions = self._under_way = 0
        self._busy = self._since = 0.0

    @contextlib.contextmanager
    def scoring(self, completions: int) -> Iterator[None]:
        """Count completions, and the time in which at least one thread is in here."""
        with self._lock:
            self._since = self._since if self._under_way else time.monotonic()
            self._under_way += 1
        try:
            yield
        finally:
            with self._lock:
                self._completions += completions
                self._under_way -= 1
                if not self._under_way:
                    self._busy += time.monotonic() - self._since

    def count(self, name: str, **counts: float) -> None:
        """Add to the counts of a reward: `calls`, `completions`, `seconds`, `repeated`."""
        with self._lock:
            for key, count in counts.items():
                self._by_reward[name][key] += count

    def failed(self, failures: Iterable[Failure]) -> None:
        """Count completions without a number."""
        with self._lock:
            for failure in failures:
                counts = self._by_reward[failure.reward]
                counts["failed"] += 1
                counts[_FAILED[failure.kind]] += 1

    def go_on_from(self, before: Mapping[str, float]) -> None:
        """Continue an earlier tally, by the names of `metrics`; others are passed over.

        What was counted here until now is in the earlier tally too: a resumed run judges the shown
        answers of its start once more.
        """
        self._before = {}
        counted = self.metrics()
        with self._lock:
            self._before = {name: value - counted.get(name, 0) for name, value in before.items()}

    def metrics(self, processes: int = 0) -> Mapping[str, float]:
        """Return every count, in all and by reward; `processes` were started so far."""
        with self._lock:
            groups = {f"reward/{name}": {**counts} for name, counts in self._by_reward.items()}
            now = time.monotonic() - self._since if self._under_way else 0.0
            busy, completions = self._busy + now, self._completions
        total = {key: sum(counts[key] for counts in groups.values()) for key in _NONE}
        metrics: dict[str, float] = {
            f"{prefix}/{key}": count
            for prefix, counts in ({"reward": total} | groups).items()
            for key, count in counts.items()
        }
        metrics["reward/completions"] = completions  # each once, however many rewards judge it
        metrics["reward/busy_seconds"] = busy
        metrics["reward/processes"] = processes
        metrics = {name: value + self._before.get(name, 0) for name, value in metrics.items()}
        completions, busy = metrics["reward/completions"], metrics["reward/busy_seconds"]
        metrics["reward/completions_per_second"] = completions / busy if busy else 0.0
        return metrics
