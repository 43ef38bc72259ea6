"""Errors between a trainer and its servers, by what the trainer can do about them, and waiting."""

import asyncio
from collections.abc import Callable

from ogrpo.rollout.check import Flaw

BUSY = (408, 425, 429, 502, 503, 504)
"""Answers of a server, or of a proxy before it, that is there and cannot answer yet. Any other
answer of an error, repeated often enough in a row, says that it never will."""
FIRST_BACKOFF, LONGEST_BACKOFF = 0.5, 30.0
"""Seconds that a server is left alone after a failure; they double from one to the next."""


class RolloutError(RuntimeError):
    """Samples cannot be had: every server is gone, or one answers what it must not.

    `status` is a server's answer; None where there was none.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class Unavailable(RolloutError):
    """A server that does not answer, or fails: worth another attempt, elsewhere or later.

    Where there is no `status`, what it did is unknown.
    """


class Flawed(RolloutError):
    """An answer that is not what was ordered: worth another attempt, elsewhere or later."""

    def __init__(self, flaw: Flaw) -> None:
        super().__init__(str(flaw))
        self.flaw = flaw


class Rejected(RolloutError):
    """A request that the server will reject again (3xx, 4xx)."""


class PublishRefused(RolloutError):
    """Weights that a server did not take; it goes on serving what it had."""


class Broken(RolloutError):
    """A server whose live model may be half loaded: what it serves belongs to no version."""


class Unproven(RolloutError):
    """A server whose log-probs are not those of the weights that were pushed to it."""


class Refused(ValueError):
    """A set-up under which log-probs would be wrong, with the remedy."""


def backoff_seconds(before: int) -> float:
    """Returns how long to leave a server alone that has been left alone so many times in a row."""
    return min(LONGEST_BACKOFF, FIRST_BACKOFF * 2**before)


class Patience:
    """A limit on how long something may go on failing without a success in between."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._since: float | None = None

    def is_over(self) -> bool:
        """Notes a failure; returns whether the first since the last success is that long ago."""
        now = asyncio.get_running_loop().time()
        self._since = now if self._since is None else self._since
        return now - self._since >= self.seconds

    def renew(self) -> None:
        """Notes a success: the next failure is the first again."""
        self._since = None


class Changes:
    """Wakes all who wait for something to become true."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def tell(self) -> None:
        """Has everybody look again."""
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self) -> None:
        """Returns when somebody tells."""
        await self._event.wait()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Returns when it holds."""
        while not holds():
            await self.wait()
