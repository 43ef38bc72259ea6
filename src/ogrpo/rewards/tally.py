"""What the scoring of completions has cost and how it came out, counted from several threads."""

import contextlib
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ogrpo.rewards.scores import KINDS, Failure


@dataclass
class _Counts:
    calls: int = 0
    completions: int = 0
    seconds: float = 0.0
    repeated: int = 0
    failed: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))


class Tally:
    """Counts since its making, for each reward of the given names."""

    def __init__(self, names: Sequence[str]) -> None:
        self._before: dict[str, float] = {}
        self._lock = threading.Lock()
        self._by_reward = {name: _Counts() for name in names}
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

    def called(self, name: str, completions: int, seconds: float) -> None:
        """Count one call of a reward."""
        with self._lock:
            counts = self._by_reward[name]
            counts.calls += 1
            counts.completions += completions
            counts.seconds += seconds

    def repeated(self, name: str) -> None:
        """Count a call that failed and was repeated for each completion alone."""
        with self._lock:
            self._by_reward[name].repeated += 1

    def failed(self, failures: Iterable[Failure]) -> None:
        """Count completions without a number."""
        with self._lock:
            for failure in failures:
                self._by_reward[failure.reward].failed[failure.kind] += 1

    def go_on_from(self, before: Mapping[str, float]) -> None:
        """Continues an earlier tally, by the names of `metrics`; others are passed over.

        What was counted here until now is in the earlier tally too: a resumed run judges the shown
        answers of its start once more.
        """
        with self._lock:
            self._before = {}
        counted = self.metrics()
        with self._lock:
            self._before = {name: value - counted.get(name, 0) for name, value in before.items()}

    def metrics(self, processes: int = 0) -> Mapping[str, float]:
        """Return every count, in all and by reward; `processes` were started so far."""
        with self._lock:
            now = time.monotonic() - self._since if self._under_way else 0.0
            busy, counted = self._busy + now, self._completions
            found = _flat("reward", list(self._by_reward.values()))
            for name, counts in self._by_reward.items():
                found |= _flat(f"reward/{name}", [counts])
        found["reward/completions"] = counted  # each once, however many rewards judge it
        found["reward/busy_seconds"] = busy
        found["reward/processes"] = processes
        found = {name: value + self._before.get(name, 0) for name, value in found.items()}
        counted, busy = found["reward/completions"], found["reward/busy_seconds"]
        found["reward/completions_per_second"] = counted / busy if busy else 0.0
        return found


def _flat(prefix: str, counts: Sequence[_Counts]) -> dict[str, float]:
    failed = {kind: sum(c.failed[kind] for c in counts) for kind in KINDS}
    return {
        f"{prefix}/calls": sum(c.calls for c in counts),
        f"{prefix}/completions": sum(c.completions for c in counts),
        f"{prefix}/seconds": sum(c.seconds for c in counts),
        f"{prefix}/repeated": sum(c.repeated for c in counts),
        f"{prefix}/failed": sum(failed.values()),
        **{f"{prefix}/failed/{kind.replace(' ', '_')}": n for kind, n in failed.items()},
    }
