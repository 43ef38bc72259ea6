"""The engine that samples from vLLM servers: `generate` and `publish`, many requests in flight.

    publish   params -> tensors -> a release on the disk -> every server: pause, load, label,
              resume, prove
    generate  prompts -> the least loaded server that has proven the version -> groups, kept only if
              the server is afterwards still the one that was pushed to

Requests run on an event loop in a thread of the engine's own, so that connections outlive a call
and a push may come while samples are drawn.
"""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import ml_dtypes
import numpy as np

from ogrpo.rollout.extension.ogrpo_releases import Scratch
from ogrpo.rollout.protocol import Group, IntArray, Sampling
from ogrpo.rollout.vllm import capabilities, sync, wire
from ogrpo.rollout.vllm.api import ServerApi
from ogrpo.rollout.vllm.capabilities import Capabilities, Expected
from ogrpo.rollout.vllm.errors import (
    PublishRefused,
    Refused,
    Rejected,
    RolloutError,
    Unavailable,
    Unproven,
)
from ogrpo.rollout.vllm.fleet import Fleet, Server
from ogrpo.rollout.vllm.prometheus import peaks, server_metrics
from ogrpo.rollout.vllm.sync import InFlight, Probe, PushReport, Target
from ogrpo.rollout.vllm.wire import UNLABELLED, UNTRUNCATED, Order, Truncation
from ogrpo.rollout.weights import tensors as files
from ogrpo.rollout.weights.share import WeightShare
from ogrpo.rollout.weights.store import Release, Store

T = TypeVar("T")
TensorsFn = Callable[[Any], Mapping[str, np.ndarray]]
ScoreFn = Callable[[Any, Sequence[IntArray]], Sequence[np.ndarray]]
FIRST_LOOK, LATER_LOOKS = 0.1, 5.0
"""Seconds until the servers' metrics are read in a batch, and between two readings at most."""
DTYPES = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}


@dataclass(frozen=True)
class Options:
    """How the engine behaves; the defaults suit servers on one machine or network."""

    folder: Path | None = None
    """Where releases are written, which servers see at the same path; default: a temporary one."""
    transport: str = "folder"
    """How weights travel: "folder" (shared filesystem) or "url" (pulled from the trainer)."""
    listen: str = "127.0.0.1"
    """With "url", the interface on which releases are offered."""
    advertise: str | None = None
    """With "url", the trainer's host name as servers see it; default: `listen`."""
    api_key: str | None = None
    """As given to the servers with --api-key."""
    in_flight: InFlight = "wait"
    """What a push does to requests in flight: drain them, abort them, or go on with new weights
    (exact only where the server reports the version of each token)."""
    timeout: float = 300.0
    """Seconds until a request that got no answer is given to another server."""
    patience: float = 120.0
    """Seconds without any server until the run gives up."""
    attempts: int = 6
    """Times that one request is tried."""
    per_server: int = 32
    """Requests in flight at one server; each asks for a group of every prompt in it."""
    prompts_per_request: int = 4
    """Prompts in one request of /v1/completions."""
    truncation: Truncation = UNTRUNCATED
    allow_biased: bool = False
    """Accept truncated sampling although importance ratios are then biased."""
    tolerance: float | None = None
    """Mean absolute probe difference in nats; default: 1e-3 for float32, 0.15 for bfloat16."""
    probe_count: int = 4
    probe_length: int = 16
    keep: int = 2
    """Releases that stay on the disk."""
    stock_reload: bool = False
    """Use vLLM's own reload_weights even where the extension is there."""
    delta: bool = True
    """Whether to send only what changed, where that is less (transport "url")."""

    def __post_init__(self) -> None:
        if self.transport not in ("folder", "url"):
            raise ValueError(f"transport is {self.transport!r}; use 'folder' or 'url'")
        for name in ("timeout", "patience", "attempts", "per_server", "prompts_per_request"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}; give a number above 0")


class VllmEngine:
    """Samples from one or more vLLM servers; see `connect`."""

    def __init__(
        self,
        urls: Sequence[str],
        *,
        expected: Expected,
        tensors_fn: TensorsFn,
        score_fn: ScoreFn,
        options: Options,
    ) -> None:
        self.version = -1
        self.counts: Counter[str] = Counter()
        self._expected, self._options = expected, options
        self._tensors_fn, self._score_fn = tensors_fn, score_fn
        self._target: Target | None = None
        self._last_sync: dict[str, float] = {}
        self._peaks: dict[str, float] = {}
        self._scratch = Scratch("ogrpo-releases-")
        folder = options.folder or self._scratch.folder
        pulled = options.transport == "url"
        self._store = Store(folder, keep=options.keep, delta=options.delta and pulled)
        self._share = self._open_share()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._slots = asyncio.Semaphore(options.per_server * len(urls))
        self._fleet = Fleet(
            servers=[Server(self._api(url)) for url in urls],
            per_server=options.per_server,
            patience=options.patience,
            revive=self._revive,
        )
        try:
            self._run(self._look())
        except BaseException:
            self.close()
            raise

    def _api(self, url: str) -> ServerApi:
        return ServerApi(url, api_key=self._options.api_key, timeout=self._options.timeout)

    def _open_share(self) -> WeightShare | None:
        if self._options.transport == "folder":
            return None
        listen, advertise = self._options.listen, self._options.advertise
        return WeightShare(self._store.folder, host=listen, advertised=advertise)

    @property
    def capabilities(self) -> list[Capabilities]:
        """What each server was found to do."""
        return [s.found for s in self._fleet.servers if s.found is not None]

    def table(self) -> str:
        """What will be used, for the start of a run."""
        return capabilities.table(self.capabilities)

    def metrics(self) -> dict[str, float]:
        """Counts since the start, what the last push cost, and the servers' own metrics.

        What comes and goes (requests running and waiting, use of the cache) is shown as its peak
        since the last call.
        """
        now = self._run(self._server_metrics())
        gauges, self._peaks = peaks(self._peaks, now), {}
        return {**self.counts, **self._last_sync, **now, **gauges}

    async def _server_metrics(self) -> dict[str, float]:
        return await server_metrics([s.api for s in self._fleet.servers if not s.down])

    async def _watch(self) -> None:
        """Looks at the servers while a batch is drawn, less and less often."""
        pause = FIRST_LOOK
        while True:
            await asyncio.sleep(pause)
            self._peaks = peaks(self._peaks, await self._server_metrics())
            pause = min(LATER_LOOKS, 2 * pause)

    def close(self) -> None:
        """Ends the engine's thread and connections; the servers go on."""
        if not self._thread.is_alive():
            return
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        if self._share is not None:
            self._share.close()
        self._scratch.remove()

    async def _end(self) -> None:
        # Requests of a call that was interrupted may still be on their way out.
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await self._fleet.close()

    def __enter__(self) -> "VllmEngine":
        """The engine itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes it."""
        self.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        future: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    # --- looking -------------------------------------------------------------------------------

    async def _look(self) -> None:
        for server in self._fleet.servers:
            server.found = await capabilities.look(server.api, self._expected)
            self._check(server.found)
        self._one_dtype()

    def _check(self, found: Capabilities) -> None:
        if self._options.in_flight == "keep" and not found.native:
            raise Refused(
                f"{found.url} does not say which version drew which token, so that in_flight='keep'"
                " would leave their log-probs without an owner: use 'wait' or 'abort', or start "
                "vLLM >= 0.32 with --enable-scale-out"
            )

    def _one_dtype(self) -> str | None:
        served = {s.found.dtype for s in self._fleet.servers if s.found and s.found.dtype}
        if len(served) > 1:
            raise Refused(f"the servers serve {sorted(served)}: start all with the same --dtype")
        return next(iter(served), None)

    async def _revive(self, server: Server) -> None:
        server.found = await capabilities.look(server.api, self._expected)
        self._check(server.found)
        if self._target is not None:
            await self._push(server, self._target)

    # --- publishing ----------------------------------------------------------------------------

    def publish(self, params: Any, version: int) -> None:
        """Has every server sample from `params`, as policy `version`, and proves it.

        Raises:
            ValueError: the parameters are not finite.
            PublishRefused: a server did not take the weights; all serve what they had.
            RolloutError: no server can be reached.
        """
        if version < 0:
            raise ValueError(f"version is {version}; versions count from 0")
        begin = time.perf_counter()
        release = self._store.write(self._served(self._tensors_fn(params)), version)
        target = Target(release, self._probe(params))
        try:
            self._run(self._publish(target))
        except PublishRefused:
            self._store.withdraw(release)
            raise
        self._last_sync["sync/seconds"] = time.perf_counter() - begin
        self.version = version

    def _served(self, tensors: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        dtype = self._one_dtype()
        return tensors if dtype is None else files.cast(tensors, DTYPES[dtype])

    def _probe(self, params: Any) -> Probe:
        wanted = self._options
        sequences = sync.probe_sequences(
            self._expected.vocab_size, count=wanted.probe_count, length=wanted.probe_length
        )
        log_probs = [np.asarray(x, np.float32) for x in self._score_fn(params, sequences)]
        default = sync.TOLERANCES[self._one_dtype() or "float32"]
        return Probe(sequences, log_probs, wanted.tolerance or default)

    async def _publish(self, target: Target) -> None:
        before, self._target = self._target, target
        self._fleet.version = target.version
        servers = [s for s in self._fleet.servers if not (s.down or s.excluded)]
        pushes = [self._push(server, target) for server in servers]
        ends = await asyncio.gather(*pushes, return_exceptions=True)
        refused = [end for end in ends if isinstance(end, PublishRefused | Rejected)]
        if refused:
            await self._take_back(before, target)
            raise refused[0]
        for server, end in zip(servers, ends, strict=True):
            if isinstance(end, Unavailable | Unproven):
                await self._fleet.fail(server, end)
            elif isinstance(end, BaseException):
                raise end
        self._check_someone_has(target, ends)
        self._record(target.release, [end for end in ends if isinstance(end, PushReport)])
        await self._fleet.notify()

    async def _take_back(self, before: Target | None, target: Target) -> None:
        """What one server refused, none serves: the others get the version before again."""
        self._target = before
        self._fleet.version = None if before is None else before.version
        took = [s for s in self._fleet.servers if s.version in (target.version, None)]
        for server in took:
            if before is None:
                server.version = None
            elif not (server.down or server.excluded):
                await self._fleet.fail(server, Unavailable("took weights that another refused"))
        await self._fleet.notify()

    def _check_someone_has(self, target: Target, ends: Sequence[Any]) -> None:
        unproven = [end for end in ends if isinstance(end, Unproven)]
        if unproven and not any(s.version == target.version for s in self._fleet.servers):
            raise unproven[0]

    async def _push(self, server: Server, target: Target) -> PushReport:
        assert server.found is not None
        server.busy = True
        try:
            if self._options.in_flight == "wait":
                await asyncio.wait_for(self._fleet.drained(server), self._options.timeout)
            kept, server.version = server.version, None
            server.epoch += 1
            try:
                report = await sync.push(
                    server.api,
                    server.found,
                    target,
                    in_flight=self._options.in_flight,
                    share=self._share,
                    stock=self._options.stock_reload,
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
            await self._fleet.notify()
        return report

    async def _instance(self, server: Server) -> str | None:
        now = await capabilities.describe(server.api)
        return None if now is None else now["instance"]

    def _record(self, release: Release, reports: Sequence[PushReport]) -> None:
        self.counts["sync/count"] += 1
        self.counts["sync/bytes_total"] += sum(report.bytes for report in reports)
        seconds = ("load_seconds", "prove_seconds", "paused_seconds", "probe_gap")
        worst = {f"sync/{x}": max((getattr(r, x) for r in reports), default=0.0) for x in seconds}
        self._last_sync = {
            "sync/write_seconds": release.seconds,
            "sync/bytes": float(release.bytes),
            "sync/bytes_sent": float(sum(report.bytes for report in reports)),
            **worst,
        }
        if release.changed_share is not None:
            self._last_sync["sync/changed_share"] = release.changed_share

    # --- sampling ------------------------------------------------------------------------------

    def generate(self, prompts: Sequence[IntArray], sampling: Sampling, seed: int) -> list[Group]:
        """One group per prompt, in order.

        `seed` counts where the servers can take one (see `Capabilities.seeds`); greedy completions
        of a group are one, repeated.

        Raises:
            Refused: the sampling's log-probs would be wrong.
            RolloutError: every server is gone, for longer than the patience.
        """
        target = self._target
        if target is None or self.version < 0:
            raise RuntimeError("generate() before publish(): the servers' weights are not known")
        longest = max((len(prompt) for prompt in prompts), default=0)
        for found in self.capabilities:
            capabilities.check_sampling(
                found,
                sampling,
                self._options.truncation,
                allow_biased=self._options.allow_biased,
            )
            capabilities.check_context(found, longest, sampling)
        groups = self._run(self._watched(self._generate(list(prompts), sampling, seed)))
        if self._options.truncation.active:
            self.counts["biased_completions"] += len(prompts) * sampling.group_size
        return groups

    async def _watched(self, work: Coroutine[Any, Any, T]) -> T:
        watch = asyncio.create_task(self._watch())
        try:
            result = await work
        finally:
            watch.cancel()
            await asyncio.wait([watch])
        if not watch.cancelled():
            watch.result()  # a server's silence does not end the watch: this is an error
        return result

    async def _generate(
        self, prompts: list[IntArray], sampling: Sampling, seed: int
    ) -> list[Group]:
        done: dict[int, Group] = {}
        for _ in range(self._options.attempts):
            missing = [n for n in range(len(prompts)) if n not in done]
            if not missing:
                return [done[n] for n in range(len(prompts))]
            drawn = await self._gather(
                [
                    self._chunk(chunk, [prompts[n] for n in chunk], sampling, seed)
                    for chunk in self._chunks(missing)
                ]
            )
            done.update(await self._kept(drawn))
        raise RolloutError(
            f"samples were discarded {self._options.attempts} times, as servers keep losing "
            "their weights:\n" + self._fleet.states()
        )

    async def _gather(self, work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one) for one in work]
        except ExceptionGroup as several:
            # The others were cancelled because of it; what a caller can act on is the cause.
            raise several.exceptions[0] from None
        return [task.result() for task in tasks]

    def _chunks(self, places: Sequence[int]) -> list[Sequence[int]]:
        alone = any(found.native or found.seeds for found in self.capabilities)
        size = 1 if alone else self._options.prompts_per_request
        return [places[start : start + size] for start in range(0, len(places), size)]

    async def _kept(self, drawn: Sequence["_Drawn"]) -> dict[int, Group]:
        """What was drawn from servers that are still the ones they were."""
        servers = list(dict.fromkeys(one.server for one in drawn))
        sound = await self._gather([self._sound(server) for server in servers])
        for server, good in zip(servers, sound, strict=True):
            if not good:
                await self._fleet.fail(server, Unavailable("restarted: its samples are discarded"))
        kept: dict[int, Group] = {}
        for one in drawn:
            # A server that failed on the way may have drawn with its first weights before that.
            if one.life == one.server.life:
                kept.update(zip(one.places, one.groups, strict=True))
            else:
                self.counts["discarded_groups"] += len(one.groups)
        return kept

    async def _sound(self, server: Server) -> bool:
        target = self._target
        assert server.found is not None
        assert target is not None
        if server.busy or server.version != target.version:
            # A push is under way or has just failed: the samples' own epoch has been checked.
            return not server.down
        try:
            return await sync.still_serves(
                server.api,
                server.found,
                target,
                server.instance,
                stock=self._options.stock_reload,
            )
        except Unavailable:
            return False

    async def _chunk(
        self, places: Sequence[int], prompts: list[IntArray], sampling: Sampling, seed: int
    ) -> "_Drawn":
        # Waiting here, one is woken at a time; waiting for a server, all are.
        async with self._slots:
            return await self._draw(places, prompts, sampling, seed)

    async def _draw(
        self, places: Sequence[int], prompts: list[IntArray], sampling: Sampling, seed: int
    ) -> "_Drawn":
        error: Exception | None = None
        for _ in range(self._options.attempts):
            server = await self._fleet.acquire()
            epoch, life = server.epoch, server.life
            try:
                groups = await self._ask(server, prompts, sampling, _own_seed(seed, places[0]))
            except Unavailable as failure:
                error = failure
                self.counts["failed_requests"] += 1
                await self._fleet.fail(server, failure)
                continue
            finally:
                await self._fleet.release(server)
            if self._attributable(server, epoch, groups):
                return _Drawn(server, life, places, groups)
            self.counts["discarded_groups"] += len(groups)
            if _unlabelled(groups):
                await self._fleet.fail(server, Unavailable("restarted: it has its first weights"))
        raise RolloutError(f"a request failed {self._options.attempts} times, last: {error}")

    def _attributable(self, server: Server, epoch: int, groups: Sequence[Group]) -> bool:
        """Whether it is known which version drew each token."""
        drawn = [c for group in groups for c in group.completions]
        if any(completion.version_spans for completion in drawn):
            return not _unlabelled(groups)
        # An abort ends a request at the pause, before the load.
        return server.epoch == epoch or any(c.finish_reason == "abort" for c in drawn)

    async def _ask(
        self, server: Server, prompts: list[IntArray], sampling: Sampling, seed: int
    ) -> list[Group]:
        found = server.found
        assert found is not None
        assert server.version is not None
        order = Order(
            model=found.model,
            sampling=sampling,
            truncation=self._options.truncation,
            eos_id=self._expected.eos_id,
            version=server.version,
            seed=seed if found.seeds else None,
        )
        self.counts["requests"] += 1
        if found.native:
            replies = [
                await server.api.generate(wire.generate_payload(prompt, order))
                for prompt in prompts
            ]
            return [
                wire.read_generated(reply, prompt, order)
                for reply, prompt in zip(replies, prompts, strict=True)
            ]
        reply = await server.api.complete(wire.completions_payload(prompts, order))
        return wire.read_completions(reply, prompts, order)


@dataclass(frozen=True)
class _Drawn:
    """One request's result, and who gave it."""

    server: Server
    life: object
    places: Sequence[int]
    groups: list[Group]


def _unlabelled(groups: Sequence[Group]) -> bool:
    """Whether a token was drawn by weights that nobody pushed."""
    drawn = (c for group in groups for c in group.completions)
    return any(s.version == UNLABELLED for c in drawn for s in c.version_spans)


def _own_seed(seed: int, place: int) -> int:
    return int(np.random.SeedSequence([seed, place]).generate_state(1)[0] >> 1)
