"""One server, and the task that keeps it at what is wanted.

    wanted      the target that every server is to serve; the fleet sets it
    observed    which process answers, whether it is paused, what it has proven
    until they agree: look, resume, push, prove; after a failure a rest that doubles

Nobody else changes a server. Who meets a fault says so (`doubts`), who has samples of it asks
whether they may be believed (`confirm`), and who wants samples waits until it is `ready`.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from ogrpo.rollout.vllm import capabilities, sync
from ogrpo.rollout.vllm.adapters import load_adapters, unload_others
from ogrpo.rollout.vllm.api import ServerApi
from ogrpo.rollout.vllm.capabilities import Capabilities, Expected
from ogrpo.rollout.vllm.errors import Refused, RolloutError, Unavailable, Unproven
from ogrpo.rollout.vllm.loading import Route, load
from ogrpo.rollout.vllm.options import Options
from ogrpo.rollout.vllm.sync import PushReport, Target
from ogrpo.rollout.vllm.waiting import Changes, rest_seconds
from ogrpo.rollout.weights.nccl import Nccl
from ogrpo.rollout.weights.store import Release
from ogrpo.terminal import shown

log = logging.getLogger(__name__)
RESUMED = "servers/resumed"
"""Counts the times that a server was found paused, as by a push that was cut off."""


@dataclass(frozen=True)
class Setup:
    """What the servers of a fleet have in common."""

    expected: Expected
    options: Options
    share: Route
    counts: Counter[str]
    changes: Changes


class Server:
    """One server and what is known of it.

    Attributes:
        found: what it can do; None until it was looked at.
        proven: the target that it serves, by its last proof; None while that is open.
        doubt: what went wrong since then; None while it is believed.
        answering: it has answered since the doubt, and is being brought to what is wanted.
        lineage: counts the times that it turned out to serve something else than was believed.
        loads: counts the loads; a request that spans one cannot be told apart by version.
        uses: requests under way by the model that they name.
        rests: rests since it was last believed.
        report: what the last push cost.
    """

    def __init__(self, api: ServerApi, setup: Setup) -> None:
        self.api = api
        self.found: Capabilities | None = None
        self.proven: Target | None = None
        self.doubt: Exception | None = None
        self.answering = False
        self.lineage = self.loads = 0
        self.uses: Counter[str] = Counter()
        self.report: PushReport | None = None
        self._setup, self._options = setup, setup.options
        self._wanted: Target | None = None
        self._held: Release | None = None
        self._instance: str | None = None
        self.rests = self._failures = self._begun = self._passed = 0
        self._asked = self._drawn = self._paused = False
        self._tried: object = self
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    # --- what others say and ask ---------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether samples of what is wanted can be had from it."""
        return self.doubt is None and self.proven is not None and self.proven is self._wanted

    @property
    def in_flight(self) -> int:
        """Requests under way."""
        return self.uses.total()

    def state(self) -> str:
        """For error messages."""
        version = None if self.proven is None else self.proven.version
        why = "ready" if self.ready else self.doubt or "being brought to what is wanted"
        return f"{self.api.url}: version {version}, {self.in_flight} in flight, {shown(why)}"

    def start(self) -> None:
        """Begins to look after the server."""
        self._task = asyncio.create_task(self._keep())
        self._wake.set()

    def want(self, target: Target | None) -> None:
        """Says what the server is to serve."""
        self._wanted = target
        self._wake.set()

    async def tried(self, target: Target | None) -> None:
        """Returns when it was brought to a target, or something is wrong with it."""
        await self._until(lambda: self._tried is target or self.doubt is not None)

    def doubts(self, error: Exception, *, weights: bool = False) -> None:
        """Notes that something is wrong with it; with `weights`, that those it serves are."""
        if weights:
            self._disbelieve()
        if self.doubt is None:
            log.warning("%s is given a rest: %s", self.api.url, shown(error))
        self.doubt, self.answering = error, False
        self._wake.set()
        self._setup.changes.tell()

    def take(self) -> str:
        """Puts a request on its account; the model that it is to name."""
        assert self.proven is not None
        model = self._model(self.proven)
        self.uses[model] += 1
        return model

    def release(self, model: str) -> None:
        """Takes a request off its account."""
        self.uses[model] -= 1
        self.uses += Counter()  # without those at 0
        self._drawn = True
        self._setup.changes.tell()

    async def confirm(self, lineage: int) -> bool:
        """Whether what was drawn in a lineage until now came from the weights that were believed.

        The weights are asked, by a proof that begins after this call; calls that wait at a time
        share one. What cannot be confirmed at the first attempt is not.
        """
        needed, failures = self._begun + 1, self._failures
        self._asked = True
        self._wake.set()
        await self._until(
            lambda: (
                self._passed >= needed
                or self._wanted is None
                or self.lineage != lineage
                or self._failures != failures
            )
        )
        return self.lineage == lineage and self._passed >= needed

    async def _until(self, holds: Callable[[], bool]) -> None:
        await self._setup.changes.until(lambda: holds() or self.over)
        self.check()

    @property
    def over(self) -> bool:
        """Whether nobody looks after it any more."""
        return self._task is not None and self._task.done()

    def check(self) -> None:
        """Raises what ended the task, which only a fault of our own does."""
        if self._task is not None and self._task.done():
            error = None if self._task.cancelled() else self._task.exception()
            raise RuntimeError(f"nobody looks after {self.api.url} any more") from error

    async def close(self) -> None:
        """Leaves the server alone, resumed if it was paused from here."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._paused:
            with suppress(RolloutError):
                await self.api.resume()
        await self.api.close()

    # --- the task ------------------------------------------------------------------------------

    async def _keep(self) -> None:
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while not self._agrees():
                    await self._attempt()
        finally:
            self._setup.changes.tell()

    def _agrees(self) -> bool:
        served = self._wanted is None or self.proven is self._wanted
        quiet = self.doubt is None and not (self._asked and self.proven is not None)
        return served and quiet and self.found is not None and self._tried is self._wanted

    async def _attempt(self) -> None:
        if self.doubt is not None:
            await asyncio.sleep(rest_seconds(self.rests))
            self.rests += 1
        target, doubt = self._wanted, self.doubt
        try:
            await self._reconcile(target)
        except (RolloutError, Refused) as error:
            self._failures += 1
            self._asked = False
            self.doubts(error)
        else:
            if self.doubt is doubt:  # nothing new came up meanwhile
                self._believe()
        self._tried = target
        self._setup.changes.tell()

    def _believe(self) -> None:
        if self.doubt is not None:
            log.warning("%s is back", self.api.url)
        self.doubt, self.answering, self.rests = None, False, 0

    def _disbelieve(self) -> None:
        self.proven = self._held = None
        self.lineage += 1

    def _model(self, target: Target) -> str:
        assert self.found is not None
        return target.model(self.found.model)

    async def _reconcile(self, target: Target | None) -> None:
        if self.found is None or self.doubt is not None:
            await self._meet()
        if target is not None and target is not self.proven:
            await self._drain(target)
        if self.proven is not None and self._to_prove and not await self._same(self.proven):
            self._disbelieve()
            await self._meet()
        if target is not None and self.proven is not target:
            await self._push(target)

    async def _meet(self) -> None:
        """Finds out who answers, resumes it if it is paused, and looks at it if it is new."""
        try:
            now = await capabilities.describe(self.api)
        except Refused as error:
            if self.found is None:
                raise
            raise Unavailable(str(error)) from error  # it did take weights
        self.answering = True
        self._setup.changes.tell()
        await self._resume_if_paused()
        if self.found is not None and now["instance"] == self._instance:
            return
        if self._instance is not None:
            self._disbelieve()
        self._instance = None
        found = await capabilities.look(self.api, now, self._setup.expected)
        capabilities.check_in_flight(found, self._options.in_flight)
        capabilities.check_push(found, self._options.push)
        if isinstance(self._setup.share, Nccl):
            capabilities.check_nccl(found, self._setup.share.version)
        self.found, self._instance = found, now["instance"]

    async def _resume_if_paused(self) -> None:
        paused = await self.api.is_paused()
        if paused:
            self._setup.counts[RESUMED] += 1
            log.warning(
                "%s was paused, as by a push that was cut off, and drew nothing: it is resumed",
                self.api.url,
            )
        if paused is not False:  # where it does not say, it may be
            await self._resume()
        self._paused = False

    async def _drain(self, target: Target) -> None:
        try:
            async with asyncio.timeout(self._options.timeout):
                await self._setup.changes.until(lambda: not self._in_the_way(target))
        except TimeoutError as error:
            raise Unavailable(f"{self.api.url} does not finish its requests") from error

    def _in_the_way(self, target: Target) -> bool:
        """Whether a push of the target has to wait for requests under way.

        Weights change under all of them. Adapters change under none, but a server holds those of
        two versions at a time.
        """
        if target.adapter is None or target.release is not self._held:
            return self._options.in_flight == "wait" and self.in_flight > 0
        held = [one for one in (self.proven, target) if one is not None]
        return bool({*self.uses} - {*map(self._model, held)})

    @property
    def _to_prove(self) -> bool:
        return self._asked or self._drawn or self.doubt is not None

    async def _same(self, target: Target) -> bool:
        """Whether it still is the process, with the weights, that has proven a target."""
        try:
            await self._prove(target)
        except Unproven as error:
            log.warning("%s, and nobody pushed them: %s", self.api.url, shown(error))
            return False
        return True

    async def _prove(self, target: Target) -> float:
        """Has it prove a target; returns the probe's gap.

        Raises:
            Unproven: it has other weights, or is another process.
        """
        assert self.found is not None
        self._asked = self._drawn = False
        self._begun += 1
        begun = self._begun
        try:
            gap = await sync.prove(self.api, self.found, target)
            now = await capabilities.describe(self.api)
            if (now["instance"], now["sha256"]) != (self._instance, target.release.sha256):
                raise Unproven(f"{self.api.url} has been started again or loaded by somebody else")
        except RolloutError:
            self._drawn = True
            raise
        self._passed = begun
        return gap

    async def _push(self, target: Target) -> None:
        # Where requests go on under a push, it may fail for the same reason as they.
        unproven = self.in_flight > 0 or self._drawn
        self.proven = None
        try:
            self.report = await self._pushed(target)
        except BaseException as error:
            if unproven:
                self._disbelieve()
            elif isinstance(error, Unproven):
                self._held = None
            raise
        self.proven = target

    async def _pushed(self, target: Target) -> PushReport:
        assert self.found is not None
        start = time.perf_counter()
        moved, load_seconds = 0, 0.0
        if target.adapter is None or target.release is not self._held:
            self._held = None
            self.loads += 1
            moved, load_seconds = await self._load(target)
        resumed = time.perf_counter()
        if target.adapter is not None:
            self._held = target.release
            share = self._setup.share
            assert not isinstance(share, Nccl)  # as the options have it
            moved += await load_adapters(self.api, self.found, target, share=share)
            await unload_others(self.api, {self._model(target), *self.uses})
            load_seconds += time.perf_counter() - resumed
        begin = time.perf_counter()
        gap = await self._prove(target)
        return PushReport(
            target,
            bytes=moved,
            load_seconds=load_seconds,
            prove_seconds=time.perf_counter() - begin,
            paused_seconds=resumed - start,
            probe_gap=gap,
        )

    async def _load(self, target: Target) -> tuple[int, float]:
        assert self.found is not None
        self._paused = True
        try:
            await self.api.pause(self._options.in_flight)
            start = time.perf_counter()
            moved = await load(self.api, self.found, target.release, share=self._setup.share)
            seconds = time.perf_counter() - start
            # vLLM does not clear the prefix cache itself in mode "keep".
            await self.api.reset_prefix_cache()
        except BaseException:
            with suppress(RolloutError):  # what is left paused the next attempt resumes
                await self._resume()
            raise
        await self._resume()
        return moved, seconds

    async def _resume(self) -> None:
        await self.api.resume()
        if await self.api.is_paused():
            raise Unavailable(f"{self.api.url} says that it is resumed, and is paused")
        self._paused = False
