"""The engine that samples from vLLM servers: `generate` and `publish`, many requests in flight.

    publish   params -> tensors -> a release on the disk -> every server: pause, load, label,
              resume, prove
    generate  prompts -> the least loaded server that has proven the version -> groups, kept only if
              the server is afterwards still the one that was pushed to

Requests run on an event loop in a thread of the engine's own, so that connections outlive a call
and a push may come while samples are drawn.
"""

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, suppress
from typing import Any, TypeVar, get_args

import numpy as np

from ogrpo.protocol import Group, IntArray, Sampling, check_request
from ogrpo.rollout.address import check_offer
from ogrpo.rollout.extension.ogrpo_releases import Scratch
from ogrpo.rollout.options import InFlight, ServerOptions
from ogrpo.rollout.vllm import capabilities
from ogrpo.rollout.vllm.api import ServerApi, headers_of_environment
from ogrpo.rollout.vllm.capabilities import Capabilities, Expected
from ogrpo.rollout.vllm.errors import Changes, PublishRefused, RolloutError
from ogrpo.rollout.vllm.fleet import Fleet
from ogrpo.rollout.vllm.push import TOLERANCES, Target, probe_sequences
from ogrpo.rollout.vllm.server import Server, Setup
from ogrpo.rollout.weights import Store, WeightShare
from ogrpo.system import lock
from ogrpo.system.values import check

log = logging.getLogger(__name__)
T = TypeVar("T")
TensorsFn = Callable[[Any], Mapping[str, np.ndarray]]
SequenceScoreFn = Callable[[Any, Sequence[IntArray]], Sequence[np.ndarray]]
FIRST_LOOK, LATER_LOOKS = 0.1, 5.0
"""Seconds until the servers' metrics are read in a batch, and between two readings at most."""
SHOWN = {
    "vllm:num_requests_running": "server/running",
    "vllm:num_requests_waiting": "server/waiting",
    "vllm:generation_tokens_total": "server/generated_tokens",
    "vllm:prefix_cache_hits_total": "server/prefix_cache_hits",
    "vllm:kv_cache_usage_perc": "server/kv_cache_usage",
    "vllm:num_preemptions_total": "server/preemptions",
}
"""The few of a server's own metrics that say whether it keeps up."""
SHARES = {"server/kv_cache_usage"}
"""Metrics that are not added up over servers: the fullest counts."""
GAUGES = {"server/running", "server/waiting", "server/kv_cache_usage"}
"""Metrics that come and go: between two batches all are 0, so that the peak is what tells."""


def parse_metrics(pages: Iterable[str]) -> dict[str, float]:
    """Returns the shown metrics of Prometheus pages, over all their labels."""
    total: dict[str, float] = {}
    for line in (line for page in pages for line in page.splitlines()):
        name, _, value = line.rpartition(" ")
        if (short := SHOWN.get(name.split("{", 1)[0])) is not None:
            with suppress(ValueError):  # not a number
                before, now = total.get(short, 0.0), float(value)
                total[short] = max(before, now) if short in SHARES else before + now
    return total


def peaks(before: Mapping[str, float], now: Mapping[str, float]) -> dict[str, float]:
    """Returns the larger value of each gauge."""
    return {
        name: max(before.get(name, 0.0), now.get(name, 0.0))
        for name in GAUGES & (before.keys() | now.keys())
    }


class VllmEngine(AbstractContextManager["VllmEngine"]):
    """Samples from one or more vLLM servers, each looked at first, until `close`.

    Args:
      options: the servers, which share the work, and how they are asked.
      expected: the trainer's vocabulary, end token and lengths.
      tensors_fn: parameters -> tensors by their Hugging Face names.
      score_fn: `(params, sequences)` -> log softmax(z) of tokens 1.. of each, the trainer's own,
        against which every push is proven.
      in_flight: what a push does to requests in flight.

    Raises:
      ValueError: no URL, one that is none, an option out of its bounds, an interface that is not
        there, a folder of weights that another engine uses, or credentials that cannot be sent.
      Refused: a server whose log-probs would be wrong, with the remedy.
      RolloutError: a server that does not answer.
    """

    def __init__(
        self,
        options: ServerOptions,
        *,
        expected: Expected,
        tensors_fn: TensorsFn,
        score_fn: SequenceScoreFn,
        in_flight: InFlight = "wait",
    ) -> None:
        if not options.url:
            raise ValueError("no server URL: give at least one such as http://host:8000")
        check(options)
        if in_flight not in get_args(InFlight):
            raise ValueError(f"in_flight is {in_flight!r}: choose one of {get_args(InFlight)}")
        headers, timeout = headers_of_environment(), options.timeout
        apis = [ServerApi(url, headers=headers, timeout=timeout) for url in options.url]
        if options.transport == "url":
            check_offer(options.listen, options.advertise, "", options.roots)
        self.version = -1
        self.counts: Counter[str] = Counter()
        self._expected, self._options = expected, options
        self._tensors_fn, self._score_fn = tensors_fn, score_fn
        self._peaks: dict[str, float] = {}
        self._last: dict[str, float] = {}
        self._scratch = Scratch("ogrpo-releases-")
        self._store = Store(options.folder or self._scratch.folder)
        self._lock = ExitStack()
        self._share: WeightShare | None = None
        if options.transport == "url":
            host, advertised = options.listen, options.advertise
            self._share = WeightShare(self._store.folder, host=host, advertised=advertised)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        setup = Setup(expected, options, self._share, self.counts, Changes(), in_flight)
        self._fleet = Fleet([Server(api, setup) for api in apis], setup)
        try:
            if options.folder is not None:  # another run would take its releases for its own
                held = lock.held(self._store.folder, "weights for servers", log.warning)
                self._lock.enter_context(held)
            self._run(self._fleet.start())
        except BaseException:
            self.close()
            raise

    @property
    def capabilities(self) -> list[Capabilities]:
        """Returns what each server can do."""
        return self._fleet.capabilities

    def table(self) -> str:
        """Returns what will be used, for the start of a run."""
        return capabilities.table(self.capabilities)

    def metrics(self) -> dict[str, float]:
        """Returns counts since the start, the last push's cost, and the servers' own metrics.

        What comes and goes (requests running and waiting, use of the cache) is shown as its peak
        since the last call.
        """
        now = self._run(self._server_metrics())
        gauges, self._peaks = peaks(self._peaks, now), {}
        return {**self.counts, **self._last, **now, **gauges}

    async def _server_metrics(self) -> dict[str, float]:
        """Returns the metrics of the servers that answer, together."""
        apis = [server.api for server in self._fleet.servers if server.observed.doubt is None]
        pages = await asyncio.gather(*(api.metrics() for api in apis), return_exceptions=True)
        for page in pages:
            if isinstance(page, BaseException) and not isinstance(page, RolloutError):
                raise page
        return parse_metrics(page for page in pages if isinstance(page, str))

    def close(self) -> None:
        """Ends the engine's thread and connections; the servers go on."""

        async def end() -> None:
            left = asyncio.all_tasks() - {asyncio.current_task()}
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
            await self._fleet.close()

        if not self._thread.is_alive():
            return
        self._run(end())  # requests of a call that was interrupted may still be going out
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        if self._share is not None:
            self._share.close()
        self._lock.close()
        self._scratch.remove()

    def __exit__(self, *_: object) -> None:
        """Closes the engine."""
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
        # The release is written in the dtype that the servers serve.
        dtype = self._fleet.dtype()
        tensors = self._tensors_fn(params)
        served = {name: x.astype(np.dtype(dtype), copy=False) for name, x in tensors.items()}
        release = self._store.write(served, version)
        sequences = probe_sequences(self._expected.vocab_size)
        log_probs = [np.asarray(x, np.float32) for x in self._score_fn(params, sequences)]
        kinds = {dtype, *(x.dtype.name for x in tensors.values())}
        tolerance = self._options.tolerance or max(TOLERANCES.get(kind, 0) for kind in kinds)
        target = Target(release, sequences, log_probs, tolerance)
        try:
            have = self._run(self._fleet.publish(target))
        except PublishRefused:
            if version != self.version:
                self._store.withdraw(release)
            raise
        self.version = version
        reports = [server.report for server in have if server.report is not None]
        sent = sum(report.bytes for report in reports)
        self.counts["sync/count"] += 1
        self.counts["sync/bytes_total"] += sent
        costs = ("load_seconds", "prove_seconds", "paused_seconds", "probe_gap")
        worst = {f"sync/{x}": max((getattr(r, x) for r in reports), default=0.0) for x in costs}
        self._last = {
            "sync/write_seconds": release.seconds,
            "sync/bytes": float(release.bytes),
            "sync/bytes_sent": float(sent),
            **worst,
            "sync/seconds": time.perf_counter() - begin,
        }

    # --- sampling ------------------------------------------------------------------------------

    def generate(self, prompts: Sequence[IntArray], sampling: Sampling, seed: int) -> list[Group]:
        """Returns one group per prompt, in order.

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
            capabilities.check_sampling(able, sampling, longest)
        return self._run(self._watched(self._fleet.generate(list(prompts), sampling, seed)))

    async def _watched(self, work: Coroutine[Any, Any, T]) -> T:
        """Looks at the servers' metrics while a batch is drawn, less and less often."""

        async def look() -> None:
            pause = FIRST_LOOK
            while True:
                await asyncio.sleep(pause)
                now = await self._server_metrics()
                self._peaks = peaks(self._peaks, now)  # others may have changed it meanwhile
                pause = min(LATER_LOOKS, 2 * pause)

        watch = asyncio.create_task(look())
        try:
            result = await work
        finally:
            watch.cancel()
            await asyncio.wait([watch])
        if not watch.cancelled():
            watch.result()  # a server's silence does not end the watch: this is an error
        return result
