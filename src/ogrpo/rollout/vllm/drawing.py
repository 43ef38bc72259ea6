"""Drawing from a fleet: requests in flight, retries, and which samples may be believed."""

import asyncio
import logging
from collections import Counter
from collections.abc import Container, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from ogrpo.protocol import Group, IntArray, Sampling
from ogrpo.rollout.check import REFUSED, Orders, Terms, flaws
from ogrpo.rollout.vllm import wire
from ogrpo.rollout.vllm.capabilities import Expected
from ogrpo.rollout.vllm.errors import BUSY, Flawed, Rejected, RolloutError, Unavailable
from ogrpo.rollout.vllm.fleet import Fleet
from ogrpo.rollout.vllm.options import Options
from ogrpo.rollout.vllm.server import Server, Verdict
from ogrpo.rollout.vllm.sync import Target
from ogrpo.rollout.vllm.waiting import Patience, rest_seconds
from ogrpo.rollout.vllm.wire import UNLABELLED, Order

log = logging.getLogger(__name__)
T = TypeVar("T")


class Drawing:
    """Draws groups from the servers of a fleet."""

    def __init__(
        self,
        fleet: Fleet,
        *,
        expected: Expected,
        options: Options,
        counts: Counter[str],
    ) -> None:
        self._fleet, self._counts = fleet, counts
        self._expected, self._options = expected, options
        counts[REFUSED] = 0
        self._slots = asyncio.Semaphore(options.per_server * len(self._fleet.servers))

    async def generate(self, prompts: list[IntArray], sampling: Sampling, seed: int) -> list[Group]:
        """Returns one group per prompt, in order.

        Raises:
            RolloutError: samples were discarded, or a request failed, too often or for too long.
        """
        done: dict[int, Group] = {}
        orders = Orders()
        failed = 0
        patience = Patience(self._options.patience)
        while missing := [n for n in range(len(prompts)) if n not in done]:
            chunks = [
                _Chunk(places, [prompts[n] for n in places], sampling, seed)
                for places in self._cut(missing)
            ]
            drawn = await _gather([self._chunk(chunk, orders) for chunk in chunks])
            kept, verdicts = await self._kept(drawn)
            done.update(kept)
            failed += "failed" in verdicts
            if failed >= self._options.attempts:
                raise RolloutError(
                    f"samples were discarded {failed} times, as servers keep losing their "
                    "weights:\n" + self._fleet.states()
                )
            if "unanswered" not in verdicts:
                patience.renew()
            elif patience.is_over():
                raise RolloutError(
                    f"no proof of what was drawn has been answered for {patience.seconds:g} s:\n"
                    + self._fleet.states()
                )
        return [done[n] for n in range(len(prompts))]

    def _cut(self, places: Sequence[int]) -> list[Sequence[int]]:
        alone = any(one.native or one.seeds for one in self._fleet.capabilities)
        size = 1 if alone else self._options.prompts_per_request
        return [places[start : start + size] for start in range(0, len(places), size)]

    async def _kept(self, drawn: Sequence["_Drawn"]) -> tuple[dict[int, Group], set[Verdict]]:
        """Returns what came from proven weights, and the verdicts of all servers that drew."""
        sources = list(dict.fromkeys((one.server, one.lineage) for one in drawn))
        answers = await _gather([server.confirm(lineage) for server, lineage in sources])
        verdicts = dict(zip(sources, answers, strict=True))
        kept: dict[int, Group] = {}
        for one in drawn:
            if verdicts[one.server, one.lineage] == "proven":
                kept.update(zip(one.chunk.places, one.groups, strict=True))
            else:
                self._counts["discarded_groups"] += len(one.groups)
        return kept, set(verdicts.values())

    async def _chunk(self, chunk: "_Chunk", orders: Orders) -> "_Drawn":
        # Waiting here, one is woken at a time; waiting for a server, all are.
        async with self._slots:
            return await self._draw(chunk, orders)

    async def _draw(self, chunk: "_Chunk", orders: Orders) -> "_Drawn":
        """Has a chunk drawn: answers that say no are counted, no answer at all takes patience."""
        last, answered, unanswered, waited = "", 0, 0, False
        patience = Patience(self._options.patience)
        refused: list[Server] = []
        attempts = self._options.attempts
        while answered < attempts and (unanswered < attempts or not waited):
            if refused and not self._fleet.others(refused):
                await asyncio.sleep(rest_seconds(len(refused) - 1))
            server, model = await self._fleet.acquire(refused)
            seen = server.observed
            assert seen.proven is not None
            # What failed is repeated as it was; what was refused may be refused again for its seed.
            seed = _request_seed(chunk.seed, chunk.places[0], len(refused))
            try:
                groups = await self._ask(server, seen.proven, chunk, seed, orders)
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
                last = f"{server.api.place}: {failure}"
                answered += 1
                refused.append(server)
                self._note_refusal(server.api.place, failure, chunk)
                if _is_of_version(failure) or isinstance(failure, Rejected):
                    server.doubts(failure, weights=_is_of_version(failure))
                continue
            finally:
                server.release(model)
            if self._attributable(server, seen.loads, groups):
                return _Drawn(server, seen.lineage, chunk, groups)
            answered += 1
            self._counts["discarded_groups"] += len(groups)
            if _unlabelled(groups):
                server.doubts(Unavailable("it has its first weights again"), weights=True)
        raise RolloutError(
            f"a request was tried {answered + unanswered} times without an answer that can be "
            f"used, last: {last}\n{self._fleet.states()}"
        )

    def _note_refusal(self, place: str, error: Flawed | Rejected, chunk: "_Chunk") -> None:
        """Counts the completions of an answer that was refused, and says the first of each kind."""
        reason = error.flaw.reason if isinstance(error, Flawed) else f"status_{error.status}"
        if not self._counts[f"{REFUSED}/{reason}/{place}"]:
            log.warning("%s: refused, this and others like it are counted: %s", place, error)
        for kind in ("", f"/{reason}", f"/{reason}/{place}"):
            count = len(chunk.prompts) * chunk.sampling.group_size
            self._counts[f"{REFUSED}{kind}"] += count

    def _attributable(self, server: Server, loads: int, groups: Sequence[Group]) -> bool:
        """Returns whether it is known which version drew each token."""
        drawn = [c for group in groups for c in group.completions]
        if any(completion.version_spans for completion in drawn):
            return not _unlabelled(groups)
        return server.observed.loads == loads

    async def _ask(
        self, server: Server, target: Target, chunk: "_Chunk", seed: int, orders: Orders
    ) -> list[Group]:
        """Returns what a server answers, if it is what was ordered.

        Raises:
            Flawed: it is not; one completion is enough.
        """
        able, sampling = server.observed.capabilities, chunk.sampling
        assert able is not None
        order = Order(
            model=target.model(able.model),
            sampling=sampling,
            eos_id=self._expected.eos_id,
            version=target.version,
            beneath=None if target.adapter is None else target.release.version,
            seed=seed if able.seeds else None,
            echoes=able.echoes,
        )
        groups = await self._answer(server, able.native, chunk.prompts, order)
        if _unlabelled(groups):
            return groups  # its server has restarted, whatever else is wrong
        # A push waits for what is in flight, or may change the weights under it for newer ones.
        stays = self._options.in_flight == "wait" or target.adapter is not None
        version = target.version
        versions = {version} if stays else _Since(version, self._fleet.versions)
        expected = self._expected
        terms = Terms(sampling, expected.vocab_size, expected.eos_id, versions)
        for flaw in flaws(groups, terms).values():
            raise Flawed(flaw)
        placed = dict(zip(chunk.places, groups, strict=True))
        for flaw in orders.repeated(placed, greedy=sampling.greedy).values():
            raise Flawed(flaw)
        return groups

    async def _answer(
        self, server: Server, native: bool, prompts: list[IntArray], order: Order
    ) -> list[Group]:
        self._counts["requests"] += 1
        if native:
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


async def _gather(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in work]
    except ExceptionGroup as several:
        # The others were cancelled because of it; what a caller can act on is the cause.
        raise several.exceptions[0] from None
    return [task.result() for task in tasks]


@dataclass(frozen=True)
class _Since(Container[int]):
    """The published versions from one on."""

    least: int
    published: Container[int]

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and version >= self.least and version in self.published


@dataclass(frozen=True)
class _Chunk:
    """The prompts of one request, with their places in the call."""

    places: Sequence[int]
    prompts: list[IntArray]
    sampling: Sampling
    seed: int


@dataclass(frozen=True)
class _Drawn:
    """One request's result, and who gave it."""

    server: Server
    lineage: int
    chunk: _Chunk
    groups: list[Group]


def _is_of_version(failure: Exception) -> bool:
    return isinstance(failure, Flawed) and failure.flaw.reason == "version"


def _unlabelled(groups: Sequence[Group]) -> bool:
    """Returns whether a token was drawn by weights that nobody pushed."""
    drawn = (c for group in groups for c in group.completions)
    return any(s.version == UNLABELLED for c in drawn for s in c.version_spans)


def _request_seed(seed: int, place: int, refusals: int) -> int:
    words = [seed, place, refusals] if refusals else [seed, place]
    return int(np.random.SeedSequence(words).generate_state(1)[0] >> 1)
