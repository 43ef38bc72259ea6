"""Publishing to a fleet: all servers take the weights and prove it, or none keeps them."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

from ogrpo.rollout.vllm import capabilities, sync
from ogrpo.rollout.vllm.capabilities import Capabilities, Expected
from ogrpo.rollout.vllm.errors import (
    Flawed,
    PublishRefused,
    Refused,
    Rejected,
    Unavailable,
    Unproven,
)
from ogrpo.rollout.vllm.fleet import Fleet, Server
from ogrpo.rollout.vllm.options import Options
from ogrpo.rollout.vllm.sync import PushReport, Target
from ogrpo.rollout.weights.share import WeightShare
from ogrpo.rollout.weights.store import Release


class Publisher:
    """Looks at servers, brings releases to them, and makes one that has failed ready again.

    Attributes:
        fleet: the servers.
        target: what they are to serve; None before the first push.
        versions: those that were published, and none that was taken back.
        last: what the last push cost, by the metric's name.
    """

    def __init__(
        self,
        servers: Sequence[Server],
        *,
        expected: Expected,
        options: Options,
        share: WeightShare | None,
        counts: Counter[str],
    ) -> None:
        self.target: Target | None = None
        self.versions: set[int] = set()
        self.last: dict[str, float] = {}
        self.fleet = Fleet(
            servers=servers,
            per_server=options.per_server,
            patience=options.patience,
            revive=self._revive,
        )
        self._expected, self._options = expected, options
        self._share, self._counts = share, counts

    async def look(self) -> None:
        """Asks every server what it can do.

        Raises:
            Refused: a server whose log-probs would be wrong, or several dtypes.
        """
        for server in self.fleet.servers:
            server.found = await capabilities.look(server.api, self._expected)
            self._check(server.found)
        self.dtype()

    def _check(self, found: Capabilities) -> None:
        if self._options.in_flight == "keep" and not found.native:
            raise Refused(
                f"{found.url} does not say which version drew which token, so that in_flight='keep'"
                " would leave their log-probs without an owner: use 'wait' or 'abort', or start "
                "vLLM >= 0.32 with --enable-scale-out"
            )

    def dtype(self) -> str | None:
        """The dtype that all servers serve; None where none says."""
        served = {s.found.dtype for s in self.fleet.servers if s.found and s.found.dtype}
        if len(served) > 1:
            raise Refused(f"the servers serve {sorted(served)}: start all with the same --dtype")
        return next(iter(served), None)

    async def _revive(self, server: Server) -> None:
        server.found = await capabilities.look(server.api, self._expected)
        self._check(server.found)
        if self.target is not None:
            await self._push(server, self.target)

    async def publish(self, target: Target) -> None:
        """Has every server serve the target, and prove it.

        Raises:
            PublishRefused, Rejected: a server did not take it; all serve what they had.
            Unproven: no server could show that it serves what it took.
        """
        before, self.target = self.target, target
        self.fleet.version = target.version
        self.versions.add(target.version)
        servers = [s for s in self.fleet.servers if not (s.down or s.excluded)]
        pushes = [self._push(server, target) for server in servers]
        ends = await asyncio.gather(*pushes, return_exceptions=True)
        refused = [end for end in ends if isinstance(end, PublishRefused | Rejected)]
        if refused:
            await self._take_back(before, target)
            raise refused[0]
        for server, end in zip(servers, ends, strict=True):
            if isinstance(end, Unavailable | Flawed | Unproven):
                await self.fleet.fail(server, end)
            elif isinstance(end, BaseException):
                raise end
        self._check_someone_has(target, ends)
        self._record(target.release, [end for end in ends if isinstance(end, PushReport)])
        await self.fleet.notify()

    async def _take_back(self, before: Target | None, target: Target) -> None:
        """What one server refused, none serves: the others get the version before again."""
        self.target = before
        if before is None or before.version != target.version:
            self.versions.discard(target.version)
        self.fleet.version = None if before is None else before.version
        took = [s for s in self.fleet.servers if s.version in (target.version, None)]
        for server in took:
            if before is None:
                server.version = None
            elif not (server.down or server.excluded):
                await self.fleet.fail(server, Unavailable("took weights that another refused"))
        await self.fleet.notify()

    def _check_someone_has(self, target: Target, ends: Sequence[Any]) -> None:
        unproven = [end for end in ends if isinstance(end, Unproven)]
        if unproven and not any(s.version == target.version for s in self.fleet.servers):
            raise unproven[0]

    async def _push(self, server: Server, target: Target) -> PushReport:
        assert server.found is not None
        server.busy = True
        try:
            if self._options.in_flight == "wait":
                async with asyncio.timeout(self._options.timeout):
                    await self.fleet.drained(server)
            kept, server.version = server.version, None
            server.epoch += 1
            try:
                report = await sync.push(
                    server.api,
                    server.found,
                    target,
                    in_flight=self._options.in_flight,
                    share=self._share,
                )
            except PublishRefused:
                server.version = kept
                raise
            server.instance = await self._instance(server)
            server.version = target.version
        except TimeoutError as error:
            raise Unavailable(f"{server.api.url} does not finish its requests") from error
        finally:
            server.busy = False
            await self.fleet.notify()
        return report

    async def _instance(self, server: Server) -> str | None:
        now = await capabilities.describe(server.api)
        return None if now is None else now["instance"]

    def _record(self, release: Release, reports: Sequence[PushReport]) -> None:
        self._counts["sync/count"] += 1
        self._counts["sync/bytes_total"] += sum(report.bytes for report in reports)
        seconds = ("load_seconds", "prove_seconds", "paused_seconds", "probe_gap")
        worst = {f"sync/{x}": max((getattr(r, x) for r in reports), default=0.0) for x in seconds}
        self.last = {
            "sync/write_seconds": release.seconds,
            "sync/bytes": float(release.bytes),
            "sync/bytes_sent": float(sum(report.bytes for report in reports)),
            **worst,
        }
        if release.changed_share is not None:
            self.last["sync/changed_share"] = release.changed_share
