"""Several servers as one: all are to serve the same target, and the least loaded is asked next."""

import asyncio
from collections.abc import Collection, Sequence
from contextlib import suppress

from ogrpo.rollout.vllm.capabilities import Capabilities
from ogrpo.rollout.vllm.errors import PublishRefused, Refused, Rejected, RolloutError, Unavailable
from ogrpo.rollout.vllm.server import Server
from ogrpo.rollout.vllm.sync import Target
from ogrpo.rollout.vllm.waiting import Changes

LEAST_GRACE = 5.0
"""Seconds at least that a publication waits for others once a server serves it."""
TRIES = 3
"""Times that a server is pushed to within one publication; it may have been disturbed."""


class Fleet:
    """The servers of a run.

    Args:
        servers: all of them.
        changes: told by them.
        per_server: requests in flight at one server at most.
        patience: seconds to wait while no server answers before giving up.

    Attributes:
        target: what all are to serve; None before the first push.
        versions: those that were published, and none that was taken back.
    """

    def __init__(
        self, servers: Sequence[Server], changes: Changes, *, per_server: int, patience: float
    ) -> None:
        self.servers = servers
        self.target: Target | None = None
        self.versions: set[int] = set()
        self._changes, self._per_server, self._patience = changes, per_server, patience

    async def start(self) -> None:
        """Has every server looked at.

        Raises:
            Refused: a server whose log-probs would be wrong, or that says no however often it is
                asked; or several dtypes.
            RolloutError: one did not answer as vLLM does, as long as the patience lasted.
        """
        for server in self.servers:
            server.start()
        for server in self.servers:
            await server.looked_at()
        self.dtype()

    @property
    def capabilities(self) -> list[Capabilities]:
        """Returns what each server that was looked at can do."""
        able = [server.observed.capabilities for server in self.servers]
        return [one for one in able if one is not None]

    def dtype(self) -> str:
        """Returns the dtype that all servers serve."""
        served = {able.dtype for able in self.capabilities}
        if len(served) > 1:
            raise Refused(f"the servers serve {sorted(served)}: start all with the same --dtype")
        return served.pop()

    # --- publishing ----------------------------------------------------------------------------

    async def publish(self, target: Target) -> Sequence[Server]:
        """Has every server serve a target and prove it; returns those that do.

        A server that does not answer meanwhile is brought to it as soon as it does.

        Raises:
            PublishRefused: a server did not take it; all are to serve what they had.
            RolloutError: no server shows that it serves it, although one answers.
        """
        before, self.target = self.target, target
        well = [server for server in self.servers if server.observed.doubt is None]
        for server in self.servers:
            server.aim(target)
        self.versions.add(target.version)
        await self._settled(well, target)
        doubts = [one for one in (server.observed.doubt for server in well) if one is not None]
        for doubt in doubts:
            if isinstance(doubt, PublishRefused):
                self._take_back(before, target)
                raise doubt
        have = self._serving(target)
        for doubt in doubts:
            if not have and not isinstance(doubt, Unavailable | Rejected):
                raise doubt
        return have

    async def _settled(self, servers: Sequence[Server], target: Target) -> None:
        """Returns when one serves a target, and the others had as long again; or none will."""
        begin = asyncio.get_running_loop().time()
        await self._changes.until(
            lambda: bool(self._serving(target)) or all(_is_hopeless(server) for server in servers)
        )
        for server in servers:
            server.check()
        grace = max(LEAST_GRACE, asyncio.get_running_loop().time() - begin)
        with suppress(TimeoutError):
            async with asyncio.timeout(grace):
                for server in servers:
                    await server.settled(target)

    def _serving(self, target: Target) -> list[Server]:
        return [server for server in self.servers if server.observed.proven is target]

    def _take_back(self, before: Target | None, target: Target) -> None:
        """Has all servers serve the target before, as one refused this one."""
        self.target = before
        if before is None or before.version != target.version:
            self.versions.discard(target.version)
        for server in self.servers:
            server.aim(before)

    # --- sampling ------------------------------------------------------------------------------

    async def acquire(self, avoided: Collection[Server] = ()) -> tuple[Server, str]:
        """The least loaded server that is ready, and the model to name; waits for one if need be.

        Args:
            avoided: servers that are asked only where no other will do.

        Raises:
            RolloutError: none answered for `patience` seconds, or none ever will as it is.
        """
        loop = asyncio.get_running_loop()
        alone_since: float | None = None
        while (server := self._free(avoided)) is None:
            self._check_usable()
            left: float | None = None
            if all(one.observed.doubt is not None for one in self.servers):
                alone_since = loop.time() if alone_since is None else alone_since
                left = self._left(alone_since + self._patience - loop.time())
            else:
                alone_since = None
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._changes.wait()
        return server, server.take()

    def _check_usable(self) -> None:
        for server in self.servers:
            server.check()
        if all(isinstance(server.observed.doubt, Refused) for server in self.servers):
            raise RolloutError("no server can be used:\n" + self.states())

    def _left(self, seconds: float) -> float | None:
        if seconds > 0:
            return seconds
        if any(server.observed.answering for server in self.servers):
            return None  # it is being brought to the target; that ends by itself
        raise RolloutError(
            f"no server has answered for {self._patience:g} s; start one again and resume the run "
            "from its last checkpoint:\n" + self.states()
        )

    def _free(self, avoided: Collection[Server]) -> Server | None:
        able = self.others(avoided) or self.servers
        free = [s for s in able if s.observed.ready and s.in_flight < self._per_server]
        return min(free, key=lambda server: server.in_flight, default=None)

    def others(self, avoided: Collection[Server]) -> list[Server]:
        """The servers beside these that are ready, or will be once they have been pushed to."""
        return [s for s in self.servers if s not in avoided and s.observed.doubt is None]

    def states(self) -> str:
        """One line a server."""
        return "\n".join(f"  {server.state()}" for server in self.servers)

    async def close(self) -> None:
        """Stops looking after servers and closes the connections."""
        await asyncio.gather(*(server.close() for server in self.servers))


def _is_hopeless(server: Server) -> bool:
    """Returns whether nothing is gained by waiting for it, now or ever."""
    doubt = server.observed.doubt
    if server.over or isinstance(doubt, PublishRefused | Refused | Unavailable | Rejected):
        return True
    return doubt is not None and server.observed.rests >= TRIES
