"""Waiting, of those who use servers and of those who look after them."""

import asyncio
from collections.abc import Callable

FIRST_REST, LONGEST_REST = 0.5, 30.0
"""Seconds that a server is left alone after a failure; they double from one to the next."""


def rest_seconds(before: int) -> float:
    """Returns how long to leave a server alone that has been left alone so many times in a row."""
    return min(LONGEST_REST, FIRST_REST * 2**before)


class Patience:
    """Seconds in which something may go on failing."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._since: float | None = None

    def is_over(self) -> bool:
        """Notes a failure; returns whether the first of its row is that long ago."""
        now = asyncio.get_running_loop().time()
        self._since = now if self._since is None else self._since
        return now - self._since >= self.seconds

    def renew(self) -> None:
        """Notes a success, which ends the row."""
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
