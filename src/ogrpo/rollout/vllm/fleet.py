"""Several servers as one: all are to serve the same target, and the least loaded draws next.

publish   target -> every server is aimed at it -> those that have proven it
generate  prompts -> chunks in flight at servers, retried -> the groups that may be believed
"""

import asyncio
import logging
from collections.abc import Collection, Coroutine, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from ogrpo.protocol import Group, IntArray, Sampling, derived_seed
from ogrpo.rollout.check import REFUSED, Duplicates, Requirements, flaws
from ogrpo.rollout.vllm import wire
from ogrpo.rollout.vllm.capabilities import Capabilities
from ogrpo.rollout.vllm.errors import (
    BUSY,
    Flawed,
    Patience,
    PublishRefused,
    Refused,
    Rejected,
    RolloutError,
    Unavailable,
    backoff_seconds,
)
from ogrpo.rollout.vllm.push import Target
from ogrpo.rollout.vllm.server import Server, Setup, Trust
from ogrpo.rollout.vllm.wire import UNLABELLED, Order

log = logging.getLogger(__name__)
T = TypeVar("T")
LEAST_GRACE = 5.0
"""Seconds at least that a publication waits for others once a server serves it."""
PROMPTS_PER_REQUEST = 4
"""Prompts in one request of /v1/completions."""
TRIES = 3
"""Times that a server is pushed to within one publication; it may have been disturbed."""


class _Chunk(NamedTuple):
    """The prompts of one request, with their places in the call."""

    places: Sequence[int]
    prompts: list[IntArray]
    sampling: Sampling
    seed: int


class Fleet:
    """The servers of a run.

    Attributes:
      target: what all are to serve; None before the first push.
      versions: those that were published, and none that was taken back.
    """

    def __init__(self, servers: Sequence[Server], setup: Setup) -> None:
        self.servers = servers
        self.target: Target | None = None
        self.versions: set[int] = set()
        self._options, self._expected = setup.options, setup.expected
        self._in_flight = setup.in_flight
        self._changes, self._counts = setup.changes, setup.counts
        self._counts[REFUSED] = 0
        self._slots = asyncio.Semaphore(self._options.per_server * len(servers))

    async def start(self) -> None:
        """Has every server looked at.

        Raises:
          Refused: a server whose log-probs would be wrong, or that says no however often it is
            asked; or several dtypes.
          RolloutError: one did not answer as vLLM does, within the seconds of `wait`.
        """
        for server in self.servers:
            server.start()
        await _gather([server.looked_at() for server in self.servers])
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

    def states(self) -> str:
        """Returns one line a server."""
        return "\n".join(f"  {server.state()}" for server in self.servers)

    async def close(self) -> None:
        """Stops looking after servers and closes the connections."""
        await asyncio.gather(*(server.close() for server in self.servers))

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
                self.target = before
                if before is None or before.version != target.version:
                    self.versions.discard(target.version)
                for server in self.servers:
                    server.aim(before)
                raise doubt
        have = self._serving(target)
        for doubt in doubts:
            if not have and not isinstance(doubt, Unavailable | Rejected):
                raise doubt
        return have

    async def _settled(self, servers: Sequence[Server], target: Target) -> None:
        """Returns when one serves a target, and the others had as long again; or none will."""

        def hopeless(server: Server) -> bool:
            doubt = server.observed.doubt
            if server.over or isinstance(doubt, PublishRefused | Refused | Unavailable | Rejected):
                return True
            return doubt is not None and server.observed.backoffs >= TRIES

        begin = asyncio.get_running_loop().time()
        await self._changes.until(
            lambda: bool(self._serving(target)) or all(map(hopeless, servers))
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

    # --- sampling ------------------------------------------------------------------------------

    async def generate(self, prompts: list[IntArray], sampling: Sampling, seed: int) -> list[Group]:
        """Returns one group per prompt, in order, each drawn by proven weights.

        Raises:
          RolloutError: samples were discarded, or a request failed, too often or for too long.
        """
        done: dict[int, Group] = {}
        duplicates, failed, patience = Duplicates(), 0, Patience(self._options.patience)
        while missing := [n for n in range(len(prompts)) if n not in done]:
            alone = any(one.native or one.seeds for one in self.capabilities)
            size = 1 if alone else PROMPTS_PER_REQUEST
            cuts = [missing[start : start + size] for start in range(0, len(missing), size)]
            chunks = [_Chunk(cut, [prompts[n] for n in cut], sampling, seed) for cut in cuts]
            drawn = await _gather([self._draw(chunk, duplicates) for chunk in chunks])
            sources = list(dict.fromkeys((server, resets) for server, resets, _ in drawn))
            answers = await _gather([server.confirm(resets) for server, resets in sources])
            verdicts = dict(zip(sources, answers, strict=True))
            for chunk, (server, resets, groups) in zip(chunks, drawn, strict=True):
                if verdicts[server, resets] == "proven":
                    done.update(zip(chunk.places, groups, strict=True))
                else:
                    self._counts["discarded_groups"] += len(groups)
            failed += "failed" in answers
            if failed >= self._options.attempts:
                raise RolloutError(
                    f"samples were discarded {failed} times, as servers keep losing their "
                    "weights:\n" + self.states()
                )
            if "unanswered" not in answers:
                patience.renew()
            elif patience.is_over():
                raise RolloutError(
                    f"no proof of what was drawn has been answered for {patience.seconds:g} s:\n"
                    + self.states()
                )
        return [done[n] for n in range(len(prompts))]

    async def _draw(self, chunk: _Chunk, duplicates: Duplicates) -> tuple[Server, int, list[Group]]:
        """Has a chunk drawn, tried until an answer can be used.

        Answers that say no are counted, no answer at all takes patience, too.

        Returns:
          The server, its `resets` while it drew, and the groups.
        """
        answered, unanswered, waited, last = 0, 0, False, ""
        patience, refused = Patience(self._options.patience), list[Server]()
        # Waiting for a slot, one is woken at a time; waiting for a server, all are.
        async with self._slots:
            while max(answered, unanswered if waited else 0) < self._options.attempts:
                if refused and not self._others(refused):
                    await asyncio.sleep(backoff_seconds(len(refused) - 1))
                server = await self.acquire(refused)
                seen = server.observed
                assert seen.proven is not None
                try:
                    groups = await self._request(
                        server, seen.proven, chunk, len(refused), duplicates
                    )
                except Unavailable as failure:
                    last = str(failure)
                    if failure.status is None or failure.status in BUSY:
                        unanswered, waited = unanswered + 1, patience.is_over()
                    else:
                        answered += 1
                    self._counts["failed_requests"] += 1
                    server.doubts(failure)
                    continue
                except (Flawed, Rejected) as failure:
                    aborted = isinstance(failure, Flawed) and failure.flaw.reason == "aborted"
                    if aborted and server.observed.loads != seen.loads:
                        self._counts["discarded_groups"] += len(chunk.prompts)
                        continue  # by a push of ours, which says nothing against the server
                    last = f"{server.api.place}: {failure}"
                    answered += 1
                    refused.append(server)
                    flaw = self._note_refusal(server.api.place, failure, chunk)
                    if flaw == "version" or isinstance(failure, Rejected):
                        server.doubts(failure, weights=flaw == "version")
                    continue
                finally:
                    server.release()
                # It has to be known which version drew each token.
                unlabelled, labelled = _unlabelled(groups)
                if not unlabelled and (labelled or server.observed.loads == seen.loads):
                    return server, seen.resets, groups
                answered += 1
                self._counts["discarded_groups"] += len(groups)
                if unlabelled:
                    server.doubts(Unavailable("it has its first weights again"), weights=True)
        raise RolloutError(
            f"a request was tried {answered + unanswered} times without an answer that can be used,"
            f" last: {last}\n{self.states()}"
        )

    def _note_refusal(self, place: str, error: Flawed | Rejected, chunk: _Chunk) -> str:
        """Counts the completions of a refused answer, logs the first of each kind; its reason."""
        reason = error.flaw.reason if isinstance(error, Flawed) else f"status_{error.status}"
        if not self._counts[f"{REFUSED}/{reason}/{place}"]:
            log.warning("%s: refused, this and others like it are counted: %s", place, error)
        for kind in ("", f"/{reason}", f"/{reason}/{place}"):
            count = len(chunk.prompts) * chunk.sampling.group_size
            self._counts[f"{REFUSED}{kind}"] += count
        return reason

    async def _request(
        self, server: Server, target: Target, chunk: _Chunk, refusals: int, duplicates: Duplicates
    ) -> list[Group]:
        """Returns what a server answers, if it is what was ordered.

        Raises:
          Flawed: it is not; one completion is enough.
        """
        able, sampling, expected = server.observed.capabilities, chunk.sampling, self._expected
        assert able is not None
        # What failed is repeated as it was; what was refused may be refused again for its seed.
        seed = derived_seed(chunk.seed, chunk.places[0], *([refusals] if refusals else []))
        order = Order(
            model=able.model,
            sampling=sampling,
            eos_id=expected.eos_id,
            version=target.version,
            seed=seed if able.seeds else None,
            echoes=able.echoes,
        )
        self._counts["requests"] += 1
        if able.native:
            groups = []
            for prompt in chunk.prompts:
                reply = await server.api.generate(wire.generate_payload(prompt, order))
                groups.append(wire.read_generated(reply, prompt, order))
        else:
            reply = await server.api.complete(wire.completions_payload(chunk.prompts, order))
            groups = wire.read_completions(reply, chunk.prompts, order)
        if _unlabelled(groups)[0]:
            return groups  # its server has restarted, whatever else is wrong
        # A push waits for what is in flight, or may change the weights under it for newer ones.
        stays, since = self._in_flight == "wait", target.version
        versions = {since} if stays else {version for version in self.versions if version >= since}
        required = Requirements(sampling, expected.vocab_size, expected.eos_id, versions)
        placed = dict(zip(chunk.places, groups, strict=True))
        flawed = flaws(groups, required) or duplicates.repeated(placed, greedy=sampling.greedy)
        for flaw in flawed.values():
            raise Flawed(flaw)
        return groups

    async def acquire(self, avoided: Collection[Server] = ()) -> Server:
        """Returns the least loaded ready server, one request more; waits for one if need be.

        Args:
          avoided: servers that are asked only where no other will do.

        Raises:
          RolloutError: none answered for the patience, or none ever will as it is.
        """
        loop, patience = asyncio.get_running_loop(), self._options.patience
        alone_since: float | None = None
        while (server := self._free(avoided)) is None:
            for one in self.servers:
                one.check()
            if all(isinstance(one.observed.doubt, Refused) for one in self.servers):
                raise RolloutError("no server can be used:\n" + self.states())
            left: float | None = None
            if all(one.observed.doubt is not None for one in self.servers):
                alone_since = loop.time() if alone_since is None else alone_since
                left = alone_since + patience - loop.time()
                if left <= 0:
                    examined = (Trust.ANSWERING, Trust.INSPECTED, Trust.PROVEN)
                    if not any(one.observed.trust in examined for one in self.servers):
                        raise RolloutError(
                            f"no server has been ready for {patience:g} s; fix what each reports"
                            " and resume the run from its last checkpoint:\n" + self.states()
                        )
                    left = None  # one is being brought to the target; that ends by itself
            else:
                alone_since = None
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._changes.wait()
        server.uses += 1
        return server

    def _free(self, avoided: Collection[Server]) -> Server | None:
        able, most = self._others(avoided) or self.servers, self._options.per_server
        free = [s for s in able if s.observed.ready and s.uses < most]
        return min(free, key=lambda server: server.uses, default=None)

    def _others(self, avoided: Collection[Server]) -> list[Server]:
        """Returns the other servers that are ready, or will be once they have been pushed to."""
        return [s for s in self.servers if s not in avoided and s.observed.doubt is None]


async def _gather(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in work]
    except ExceptionGroup as several:
        # The others were cancelled because of it; what a caller can act on is the cause.
        raise several.exceptions[0] from None
    return [task.result() for task in tasks]


def _unlabelled(groups: Sequence[Group]) -> tuple[bool, bool]:
    """Returns whether a token was drawn by weights that nobody pushed, and if all are known."""
    spans = [c.version_spans for group in groups for c in group.completions]
    return any(s.version == UNLABELLED for each in spans for s in each), all(spans)
