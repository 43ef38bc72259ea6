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
from typing import Any, TypeVar

import numpy as np

from ogrpo.protocol import Group, IntArray, Sampling, check_request
from ogrpo.rollout.extension.ogrpo_releases import Scratch
from ogrpo.rollout.vllm import capabilities, sync
from ogrpo.rollout.vllm.api import ServerApi
from ogrpo.rollout.vllm.capabilities import Capabilities, Expected
from ogrpo.rollout.vllm.drawing import Drawing
from ogrpo.rollout.vllm.errors import PublishRefused
from ogrpo.rollout.vllm.fleet import Fleet
from ogrpo.rollout.vllm.options import Options
from ogrpo.rollout.vllm.prometheus import peaks, server_metrics
from ogrpo.rollout.vllm.server import Server, Setup
from ogrpo.rollout.vllm.sync import Probe, PushReport, Target
from ogrpo.rollout.vllm.waiting import Changes
from ogrpo.rollout.weights import tensors as files
from ogrpo.rollout.weights.nccl import Nccl
from ogrpo.rollout.weights.share import WeightShare
from ogrpo.rollout.weights.store import Release, Store
from ogrpo.rollout.weights.tensors import AdapterTensors

T = TypeVar("T")
TensorsFn = Callable[[Any], Mapping[str, np.ndarray]]
AdaptersFn = Callable[[Any], AdapterTensors]
ScoreFn = Callable[[Any, Sequence[IntArray]], Sequence[np.ndarray]]
FIRST_LOOK, LATER_LOOKS = 0.1, 5.0
"""Seconds until the servers' metrics are read in a batch, and between two readings at most."""


class VllmEngine:
    """Samples from one or more vLLM servers, each asked first what it can do.

    Args:
        urls: as in `http://host:8000`; several share the work.
        expected: the trainer's vocabulary, end token and lengths.
        tensors_fn: parameters -> tensors by their Hugging Face names; with `adapters_fn` those
            beneath the adapters, the same from push to push.
        score_fn: `(params, sequences)` -> log softmax(z) of tokens 1.. of each, the trainer's own,
            against which every push is proven.
        adapters_fn: parameters -> adapters, with push="adapters".
        options: see `Options`.
        nccl: the trainer's GPU, with transport="nccl".

    Raises:
        ValueError: no URL, or a function that does not go with the options.
        Refused: a server whose log-probs would be wrong, with the remedy.
        RolloutError: a server that does not answer.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        expected: Expected,
        tensors_fn: TensorsFn,
        score_fn: ScoreFn,
        adapters_fn: AdaptersFn | None = None,
        options: Options | None = None,
        nccl: Nccl | None = None,
    ) -> None:
        if not urls:
            raise ValueError("no server URL: give at least one such as http://host:8000")
        options = options or Options()
        if (options.push == "adapters") != (adapters_fn is not None):
            raise ValueError(f"push is {options.push!r}: adapters_fn goes with 'adapters' alone")
        if (options.transport == "nccl") != (nccl is not None):
            raise ValueError(f"transport is {options.transport!r}: nccl goes with 'nccl' alone")
        self.version = -1
        self.counts: Counter[str] = Counter()
        self._expected, self._options = expected, options
        self._tensors_fn, self._score_fn = tensors_fn, score_fn
        self._adapters_fn = adapters_fn
        self._beneath: Release | None = None
        self._peaks: dict[str, float] = {}
        self._last: dict[str, float] = {}
        self._scratch = Scratch("ogrpo-releases-")
        folder = options.folder or self._scratch.folder
        self._store = Store(folder, keep=options.keep)
        self._adapters = Store(folder, keep=options.keep, letter="a")
        self._share = self._open_share() if nccl is None else nccl
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        changes = Changes()
        setup = Setup(expected, options, self._share, self.counts, changes)
        self._fleet = Fleet(
            [Server(self._api(url), setup) for url in urls],
            changes,
            per_server=options.per_server,
            patience=options.patience,
        )
        self._drawing = Drawing(self._fleet, expected=expected, options=options, counts=self.counts)
        try:
            self._run(self._fleet.start())
        except BaseException:
            self.close()
            raise

    def _api(self, url: str) -> ServerApi:
        return ServerApi(url, headers=self._options.headers, timeout=self._options.timeout)

    def _open_share(self) -> WeightShare | None:
        if self._options.transport == "folder":
            return None
        listen, advertise = self._options.listen, self._options.advertise
        return WeightShare(self._store.folder, host=listen, advertised=advertise)

    @property
    def capabilities(self) -> list[Capabilities]:
        """Returns what each server can do."""
        return self._fleet.capabilities

    def table(self) -> str:
        """Returns what will be used, for the start of a run."""
        return capabilities.table(self.capabilities)

    def metrics(self) -> dict[str, float]:
        """Counts since the start, what the last push cost, and the servers' own metrics.

        What comes and goes (requests running and waiting, use of the cache) is shown as its peak
        since the last call.
        """
        now = self._run(self._server_metrics())
        gauges, self._peaks = peaks(self._peaks, now), {}
        return {**self.counts, **self._last, **now, **gauges}

    async def _server_metrics(self) -> dict[str, float]:
        well = [s.api for s in self._fleet.servers if s.observed.doubt is None]
        return await server_metrics(well)

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
        if isinstance(self._share, WeightShare):
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
        target = self._written(params, version)
        try:
            have = self._run(self._fleet.publish(target))
        except PublishRefused:
            if target.adapter is None:
                self._store.withdraw(target.release)
            else:  # the weights beneath are those of the versions before, too
                self._adapters.withdraw(target.adapter)
            raise
        self.version = version
        self._record(target, [server.report for server in have if server.report is not None])
        self._last["sync/seconds"] = time.perf_counter() - begin

    def _written(self, params: Any, version: int) -> Target:
        if self._adapters_fn is None:
            whole = self._store.write(self._served(self._tensors_fn(params)), version)
            return Target(whole, self._probe(params))
        if self._beneath is None:
            self._beneath = self._store.write(self._served(self._tensors_fn(params)), version)
        named = self._adapters_fn(params)
        about = {"adapter": named.about}
        alone = self._adapters.write(self._served(named.tensors), version, about=about)
        return Target(self._beneath, self._probe(params), alone)

    def _record(self, target: Target, reports: Sequence[PushReport]) -> None:
        release = target.adapter or target.release
        sent = sum(report.bytes for report in reports)
        self.counts["sync/count"] += 1
        self.counts["sync/bytes_total"] += sent
        seconds = ("load_seconds", "prove_seconds", "paused_seconds", "probe_gap")
        worst = {f"sync/{x}": max((getattr(r, x) for r in reports), default=0.0) for x in seconds}
        self._last = {
            "sync/write_seconds": release.seconds,
            "sync/bytes": float(release.bytes),
            "sync/bytes_sent": float(sent),
            **worst,
        }

    def _served(self, tensors: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        return files.cast(tensors, np.dtype(self._fleet.dtype()))

    def _probe(self, params: Any) -> Probe:
        options = self._options
        sequences = sync.probe_sequences(
            self._expected.vocab_size, count=options.probe_count, length=options.probe_length
        )
        log_probs = [np.asarray(x, np.float32) for x in self._score_fn(params, sequences)]
        default = sync.TOLERANCES[self._fleet.dtype()]
        return Probe(sequences, log_probs, options.tolerance or default)

    # --- sampling ------------------------------------------------------------------------------

    def generate(self, prompts: Sequence[IntArray], sampling: Sampling, seed: int) -> list[Group]:
        """One group per prompt, in order.

        `seed` counts where the servers can take one (see `Capabilities.seeds`); greedy completions
        of a group are one, repeated.

        Raises:
            ValueError: `check_request` refuses it.
            Refused: the sampling's log-probs would be wrong.
            RolloutError: every server is gone, for longer than the patience.
        """
        if self._fleet.target is None or self.version < 0:
            raise RuntimeError("generate() before publish(): the servers' weights are not known")
        check_request(prompts, sampling, vocab_size=self._expected.vocab_size)
        longest = max((len(prompt) for prompt in prompts), default=0)
        for able in self.capabilities:
            capabilities.check_sampling(able, sampling)
            capabilities.check_context(able, longest, sampling)
        return self._run(self._watched(self._drawing.generate(list(prompts), sampling, seed)))

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
