"""Calls that are asked all at once, over the lanes and in the caller's thread."""

import functools
import time
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future

from ogrpo.rewards.calls import UNASKED, CallBounds, RewardCall
from ogrpo.rewards.lanes import Crew, SeparateLane, SharedLane
from ogrpo.rewards.tally import Tally
from ogrpo.system._serve import compute, refusal
from ogrpo.system.worker import Reply, WorkerProcess

Replied = list[tuple[RewardCall, Reply]]


class Asker:
    """Asks calls of plain functions in `processes` processes, coroutines in one more.

    It knows nothing of its pool, so that a pool which nobody refers to ends.
    """

    def __init__(
        self, crew: Crew, tally: Tally, bounds: CallBounds, *, processes: int, concurrency: int
    ) -> None:
        self._crew, self._tally, self._bounds = crew, tally, bounds
        self._separate = SeparateLane(crew, processes)
        self._shared = SharedLane(crew, concurrency)
        self._closed = False

    def warm(self, *, plain: bool) -> None:
        """Start a process, and learn whether the functions can be loaded."""
        (self._separate if plain else self._shared).warm()

    def close(self) -> None:
        """End all processes; calls under way raise a RuntimeError where they were asked."""
        self._closed = True
        self._crew.close()
        self._separate.close()
        self._shared.close()

    def settle(self, calls: Sequence[RewardCall]) -> Replied:
        """Ask, and ask once more in another process where the call may not be to blame.

        So it is where the process was stopped or killed from outside, and with a coroutine, whose
        process another one may have ended.

        Raises:
            RuntimeError: the lanes were closed meanwhile, or a process does not start.
            ValueError: an argument cannot be sent to a process.
        """
        replied = self._ask(calls)
        again = [
            i
            for i, (call, reply) in enumerate(replied)
            if reply.outside or (reply.ended and call.shared)
        ]
        apart = self._ask([calls[i].apart() for i in again])
        for i, pair in zip(again, apart, strict=True):
            replied[i] = pair
        return replied

    def _ask(self, calls: Sequence[RewardCall]) -> Replied:
        try:
            futures = [None if call.reward.bounded else self._submit(call) for call in calls]
            here = [self._call_here(call) if call.reward.bounded else None for call in calls]
            replies = [
                future.result() if future is not None else reply
                for future, reply in zip(futures, here, strict=True)
            ]
        except (RuntimeError, CancelledError) as error:
            if not self._closed:
                raise
            raise RuntimeError("the pool of rewards was closed.") from error
        if self._closed:
            raise RuntimeError("the pool of rewards was closed.")
        return [(call, reply) for call, reply in zip(calls, replies, strict=True) if reply]

    def _submit(self, call: RewardCall) -> Future[Reply]:
        lane = self._shared if call.shared else self._separate
        return lane.submit(functools.partial(self._call_there, call))

    def _call_there(self, call: RewardCall, worker: WorkerProcess) -> Reply:
        if call.patience is not None and call.patience.exhausted:
            return UNASKED
        reply = worker.call(
            str(call.reward),
            call.arguments,
            seconds=self._bounds.seconds,
            count=call.count,
            asynchronous=call.reward.asynchronous,
        )
        if call.patience is not None:
            call.patience.note(reply)
        return self._counted(call, reply)

    def _call_here(self, call: RewardCall) -> Reply:
        begun = time.monotonic()
        try:
            found = compute(call.reward.function, call.arguments, call.count)
        except Exception as error:  # a user's function may raise anything
            found = refusal(error)
        return self._counted(call, Reply.of({**found, "seconds": time.monotonic() - begun}))

    def _counted(self, call: RewardCall, reply: Reply) -> Reply:
        self._tally.called(call.reward.name, call.count, reply.seconds)
        return reply
