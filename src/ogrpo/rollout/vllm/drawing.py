"""Drawing from a fleet: requests in flight, retries, and which samples may be believed."""

import asyncio
from collections import Counter
from collections.abc import Container, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from ogrpo.rollout.check import Terms, flaws
from ogrpo.rollout.protocol import Group, IntArray, Sampling
from ogrpo.rollout.vllm import wire
from ogrpo.rollout.vllm.capabilities import Expected
from ogrpo.rollout.vllm.errors import Flawed, Rejected, RolloutError, Unavailable
from ogrpo.rollout.vllm.fleet import Fleet
from ogrpo.rollout.vllm.options import Options
from ogrpo.rollout.vllm.refusals import Refusals
from ogrpo.rollout.vllm.server import Server
from ogrpo.rollout.vllm.sync import Target
from ogrpo.rollout.vllm.waiting import rest_seconds
from ogrpo.rollout.vllm.wire import UNLABELLED, Order

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
        self._refusals = Refusals(counts)
        self._slots = asyncio.Semaphore(options.per_server * len(self._fleet.servers))

    async def generate(self, prompts: list[IntArray], sampling: Sampling, seed: int) -> list[Group]:
        """One group per prompt, in order.

        Raises:
            RolloutError: samples were discarded, or a request failed, too often.
        """
        done: dict[int, Group] = {}
        for _ in range(self._options.attempts):
            missing = [n for n in range(len(prompts)) if n not in done]
            if not missing:
                return [done[n] for n in range(len(prompts))]
            drawn = await _gather(
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

    def _chunks(self, places: Sequence[int]) -> list[Sequence[int]]:
        found = [s.found for s in self._fleet.servers if s.found is not None]
        alone = any(one.native or one.seeds for one in found)
        size = 1 if alone else self._options.prompts_per_request
        return [places[start : start + size] for start in range(0, len(places), size)]

    async def _kept(self, drawn: Sequence["_Drawn"]) -> dict[int, Group]:
        """What was drawn by servers that still are what they were believed to be."""
        sources = list(dict.fromkeys((one.server, one.lineage) for one in drawn))
        believed = await _gather([server.confirm(lineage) for server, lineage in sources])
        sound = {source for source, good in zip(sources, believed, strict=True) if good}
        kept: dict[int, Group] = {}
        for one in drawn:
            if (one.server, one.lineage) in sound:
                kept.update(zip(one.places, one.groups, strict=True))
            else:
                self._counts["discarded_groups"] += len(one.groups)
        return kept

    async def _chunk(
        self, places: Sequence[int], prompts: list[IntArray], sampling: Sampling, seed: int
    ) -> "_Drawn":
        # Waiting here, one is woken at a time; waiting for a server, all are.
        async with self._slots:
            return await self._draw(places, prompts, sampling, seed)

    async def _draw(
        self, places: Sequence[int], prompts: list[IntArray], sampling: Sampling, seed: int
    ) -> "_Drawn":
        last = ""
        refused: list[Server] = []
        for _ in range(self._options.attempts):
            if refused and not self._fleet.others(refused):
                await asyncio.sleep(rest_seconds(len(refused) - 1))
            server, model = await self._fleet.acquire(refused)
            assert server.proven is not None
            lineage, loads, target = server.lineage, server.loads, server.proven
            # What failed is repeated as it was; what was refused may be refused again for its seed.
            own = _own_seed(seed, places[0], len(refused))
            try:
                groups = await self._ask(server, target, prompts, sampling, own)
            except Unavailable as failure:
                last = str(failure)
                self._counts["failed_requests"] += 1
                server.doubts(failure)
                continue
            except (Flawed, Rejected) as failure:
                last = f"{server.api.place}: {failure}"
                refused.append(server)
                self._refusals.note(server.api.place, failure, len(prompts) * sampling.group_size)
                if _is_of_version(failure) or isinstance(failure, Rejected):
                    server.doubts(failure, weights=_is_of_version(failure))
                continue
            finally:
                server.release(model)
            if self._attributable(server, loads, groups):
                return _Drawn(server, lineage, places, groups)
            self._counts["discarded_groups"] += len(groups)
            if _unlabelled(groups):
                server.doubts(Unavailable("it has its first weights again"), weights=True)
        raise RolloutError(
            f"a request was tried {self._options.attempts} times without an answer that can be "
            f"used, last: {last}\n{self._fleet.states()}"
        )

    def _attributable(self, server: Server, loads: int, groups: Sequence[Group]) -> bool:
        """Whether it is known which version drew each token."""
        drawn = [c for group in groups for c in group.completions]
        if any(completion.version_spans for completion in drawn):
            return not _unlabelled(groups)
        return server.loads == loads

    async def _ask(
        self,
        server: Server,
        target: Target,
        prompts: list[IntArray],
        sampling: Sampling,
        seed: int,
    ) -> list[Group]:
        """What a server answers, if it is what was ordered.

        Raises:
            Flawed: it is not; one completion is enough.
        """
        order = self._order(server, target, sampling, seed)
        groups = await self._answer(server, prompts, order)
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
        return groups

    def _order(self, server: Server, target: Target, sampling: Sampling, seed: int) -> Order:
        assert server.found is not None
        return Order(
            model=target.model(server.found.model),
            sampling=sampling,
            eos_id=self._expected.eos_id,
            version=target.version,
            beneath=None if target.adapter is None else target.release.version,
            seed=seed if server.found.seeds else None,
        )

    async def _answer(self, server: Server, prompts: list[IntArray], order: Order) -> list[Group]:
        assert server.found is not None
        self._counts["requests"] += 1
        if server.found.native:
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
class _Drawn:
    """One request's result, and who gave it."""

    server: Server
    lineage: int
    places: Sequence[int]
    groups: list[Group]


def _is_of_version(failure: Exception) -> bool:
    return isinstance(failure, Flawed) and failure.flaw.reason == "version"


def _unlabelled(groups: Sequence[Group]) -> bool:
    """Whether a token was drawn by weights that nobody pushed."""
    drawn = (c for group in groups for c in group.completions)
    return any(s.version == UNLABELLED for c in drawn for s in c.version_spans)


def _own_seed(seed: int, place: int, refusals: int) -> int:
    words = [seed, place, refusals] if refusals else [seed, place]
    return int(np.random.SeedSequence(words).generate_state(1)[0] >> 1)
