"""One call of one reward, and its repeats for each completion alone."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ogrpo.rewards.reward import Reward
from ogrpo.system.worker import Reply

BROKEN_PROCESSES = 4
"""How many completions, asked alone after their call failed, may overrun or break their process
before the rest of that call is not asked any more: a function that never ends would take its bound
for each."""
FORGIVEN_AFTER = 16
"""Completions that went well and make up for one that did not: a few bad ones among many are no
reason to leave the others unasked."""

GOLDEN = (5**0.5 - 1) / 2
"""Multiples of it, modulo 1, spread evenly."""
COSTLY = ("timeout", "memory", "died")
UNASKED = Reply(kind="timeout")
"""The reply to a repeat that is not asked any more."""


class CallBounds(NamedTuple):
    """What one call may take."""

    seconds: float  # of wall time
    memory_gib: float  # GiB of address space of its process


class Patience:
    """What repeats may still cost: `BROKEN_PROCESSES`, and more where others went well."""

    def __init__(self) -> None:
        self._left = float(BROKEN_PROCESSES)
        self._lock = threading.Lock()

    @property
    def exhausted(self) -> bool:
        """Whether nothing more is asked."""
        with self._lock:
            return self._left <= 0

    def note(self, reply: Reply) -> None:
        """Count a costly reply, or one that makes up for a part of one."""
        with self._lock:
            self._left -= 1 if reply.kind in COSTLY else -1 / FORGIVEN_AFTER


@dataclass(frozen=True)
class RewardCall:
    """A call of a reward over completions `first`, `first + 1`, ... of a request."""

    reward: Reward
    arguments: dict[str, list[Any]]
    count: int
    first: int = 0
    alone: bool = False  # in a process of its own, though it is a coroutine
    patience: Patience | None = field(default=None, compare=False)

    @property
    def shared(self) -> bool:
        """Whether the call shares its process with others."""
        return self.reward.asynchronous and not self.alone

    def apart(self) -> "RewardCall":
        """Return the same call in a process of its own."""
        return replace(self, alone=True)

    def singles(self) -> Iterator["RewardCall"]:
        """Yield a call for each completion, bad neighbours (of one prompt, say) far apart."""
        patience = Patience()
        for index in sorted(range(self.count), key=lambda n: n * GOLDEN % 1):
            arguments = {name: values[index : index + 1] for name, values in self.arguments.items()}
            yield replace(self, arguments=arguments, count=1, first=index, patience=patience)

    def may_be_repeated(self, reply: Reply) -> bool:
        """Tell whether asking for each completion alone can tell which one is to blame.

        A wrong number of values is the function's fault: one that gives a single number, whatever
        it is asked, would seem to be right when it is asked for one completion.
        """
        return self.count > 1 and reply.kind not in (None, "wrong count")
