"""Several servers as one: who is ready for which version, who is asked next, who is given a rest.

A server is ready when it answers, has proven the version that is being sampled, and is not being
pushed to. One that fails is left alone for a while that doubles with each failure, then looked at
anew: its capabilities, its weights and their proof; what it says of itself is not enough.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field

from ogrpo.rollout.vllm.api import ServerApi
from ogrpo.rollout.vllm.capabilities import Capabilities
from ogrpo.rollout.vllm.errors import (
    Flawed,
    PublishRefused,
    Refused,
    Rejected,
    RolloutError,
    Unavailable,
    Unproven,
)
from ogrpo.terminal import shown

log = logging.getLogger(__name__)
FIRST_REST = 0.5
LONGEST_REST = 30.0


@dataclass(eq=False)
class Server:
    """One server and what is known of it."""

    api: ServerApi
    found: Capabilities | None = None
    version: int | None = None
    """The version that it has proven; None while unknown."""
    instance: str | None = None
    """The worker's own name, new with every start."""
    fails: int = 0
    epoch: int = 0
    """Counts the loads; a request that spans one cannot be told apart by version."""
    busy: bool = False
    """A push is under way: nothing new is sent."""
    down: bool = False
    excluded: str | None = None
    """Why it is not asked again in this run."""
    failures: int = 0
    last_error: str = ""
    in_flight: int = 0

    @property
    def life(self) -> str | int:
        """The same as long as samples may be believed to come from one process.

        After a failure a server is asked who it is; where it cannot say, it may be another.
        """
        return self.fails if self.instance is None else self.instance

    def ready(self, version: int | None) -> bool:
        """Whether samples of `version` can be had from it."""
        well = not (self.busy or self.down or self.excluded)
        return well and version is not None and self.version == version

    def state(self) -> str:
        """For error messages."""
        why = self.excluded or self.last_error or "ready"
        return f"{self.api.url}: version {self.version}, {self.in_flight} in flight, {why}"


@dataclass
class Fleet:
    """The servers of a run.

    Attributes:
        servers: all of them.
        per_server: requests in flight at one server at most.
        patience: seconds to wait for any server before giving up.
        version: what is being sampled.
        revive: makes a failed server ready again, or raises.
    """

    servers: Sequence[Server]
    per_server: int
    patience: float
    revive: Callable[[Server], Awaitable[None]]
    version: int | None = None
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def acquire(self, avoided: Collection[Server] = ()) -> Server:
        """The least loaded server that is ready, waiting for one if need be.

        Args:
            avoided: servers that are asked only where no other will do.

        Raises:
            RolloutError: none became ready within `patience` seconds, or none ever will.
        """
        alone_since: float | None = None
        async with self.changed:
            while True:
                able = self.others(avoided) or self.servers
                ready = [s for s in able if s.ready(self.version)]
                free = [s for s in ready if s.in_flight < self.per_server]
                if free:
                    chosen = min(free, key=lambda s: s.in_flight)
                    chosen.in_flight += 1
                    return chosen
                if ready or any(s.busy for s in self.servers):
                    alone_since = None
                elif alone_since is None:
                    alone_since = time.monotonic()
                left = self._left(alone_since)
                await self._wait(left)

    def others(self, avoided: Collection[Server]) -> list[Server]:
        """The servers beside these that are ready, or will be once they have been pushed to."""
        return [
            server
            for server in self.servers
            if server not in avoided and (server.busy or server.ready(self.version))
        ]

    def _left(self, alone_since: float | None) -> float | None:
        if all(s.excluded for s in self.servers):
            raise RolloutError("no server can be used:\n" + self.states())
        if alone_since is None:
            return None
        left = self.patience - (time.monotonic() - alone_since)
        if left <= 0:
            raise RolloutError(
                f"no server has answered for {self.patience:g} s; start one again and resume "
                "the run from its last checkpoint:\n" + self.states()
            )
        return left

    async def _wait(self, seconds: float | None) -> None:
        # Not wait_for: before Python 3.12 it waits in a task of its own, which may take the lock
        # for a caller that has been cancelled meanwhile and never gives it back.
        try:
            async with asyncio.timeout(seconds):
                await self.changed.wait()
        except TimeoutError:
            return

    async def release(self, server: Server) -> None:
        """Takes a request off a server's account."""
        server.in_flight -= 1
        await self.notify()

    async def notify(self) -> None:
        """Wakes those who wait for a server."""
        async with self.changed:
            self.changed.notify_all()

    async def drained(self, server: Server) -> None:
        """Waits until nothing is in flight at a server."""
        async with self.changed:
            await self.changed.wait_for(lambda: server.in_flight == 0)

    async def fail(self, server: Server, error: Exception) -> None:
        """Gives a server a rest and has it looked at afterwards."""
        server.last_error = str(error)
        if server.down or server.excluded:
            return
        server.fails += 1
        server.instance = None
        log.warning("%s is given a rest: %s", server.api.url, shown(error))
        server.down, server.version = True, None
        task = asyncio.create_task(self._bring_back(server))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await self.notify()

    async def _bring_back(self, server: Server) -> None:
        while server.down and not server.excluded:
            await asyncio.sleep(min(LONGEST_REST, FIRST_REST * 2**server.failures))
            server.failures += 1
            await self._try(server)
            await self.notify()

    async def _try(self, server: Server) -> None:
        try:
            await self.revive(server)
        except (Unavailable, Rejected, Flawed) as error:
            server.last_error = str(error)
        except (Refused, PublishRefused, Unproven, RolloutError) as error:
            server.excluded = str(error)
            log.error("%s is left out of this run: %s", server.api.url, shown(error))
        else:
            server.down, server.failures, server.last_error = False, 0, ""
            log.warning("%s is back with version %s", server.api.url, server.version)

    def states(self) -> str:
        """One line a server."""
        return "\n".join(f"  {server.state()}" for server in self.servers)

    async def close(self) -> None:
        """Stops looking after servers and closes the connections."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(server.api.close() for server in self.servers))
