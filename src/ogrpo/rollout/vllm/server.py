"""One server, and the task that brings it to the target.

    Observed      what is known: the process, its weights, what it has proven, what is in doubt
    next_action   the one thing to do about that: back off, inspect, prove, push, trust, or nothing

Nobody else changes a server. Who meets a fault reports it (`doubts`), who has samples of it asks
whether they may be used (`confirm`), and who wants samples waits until it is `ready`.
"""

import asyncio
import logging
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import IntEnum, auto
from typing import Literal, TypedDict, Unpack

from ogrpo.rollout.options import InFlight, ServerOptions
from ogrpo.rollout.vllm import capabilities
from ogrpo.rollout.vllm.api import ServerApi
from ogrpo.rollout.vllm.capabilities import Capabilities, Expected
from ogrpo.rollout.vllm.errors import (
    BUSY,
    Changes,
    Patience,
    PublishRefused,
    Refused,
    RolloutError,
    Unavailable,
    Unproven,
    backoff_seconds,
)
from ogrpo.rollout.vllm.push import PushReport, Target, load, prove
from ogrpo.rollout.weights import WeightShare
from ogrpo.system.terminal import shown

log = logging.getLogger(__name__)
RESUMED = "servers/resumed"
"""Counts the times that a server was paused at an inspection, as by a push that was cut off."""
PROOFS_FAILED, PROOFS_UNANSWERED = "servers/proofs_failed", "servers/proofs_unanswered"
"""Count proofs that showed other weights, and those to which no answer came."""
UNANSWERED = 2
"""Attempts without an answer until samples that wait for a proof are given up as unanswered."""

ProofVerdict = Literal["proven", "failed", "unanswered"]
Question = asyncio.Future[ProofVerdict]
Action = Literal["back off", "inspect", "prove", "push", "trust"]
"""The next step of the task."""


class Trust(IntEnum):
    """Stages of a server's examination after something went wrong with it, in their order."""

    DOUBTED = auto()  # it is to be left alone for a while
    BACKED_OFF = auto()  # it was
    ANSWERING = auto()  # its extension has described it
    INSPECTED = auto()  # it is not paused, and its capabilities are known
    PROVEN = auto()  # it serves what it should
    FULL = auto()  # nothing is in doubt


@dataclass(frozen=True)
class Observed:
    """The state of a server, as far as it is known.

    Attributes:
      target: what it is to serve; None before the first push.
      capabilities: what it can do; None until it was looked at.
      instance: the process that was looked at.
      proven: the target that it serves, by its last proof; None while that is open.
      doubt: what went wrong last; None while nothing is.
      trust: how far its examination since then has come.
      drawn: whether samples came since its last proof began.
      awaited: whether somebody waits for a proof.
      resets: counts the times that it turned out to serve other weights than believed.
      loads: counts the loads of weights; where one began during a request, the request alone does
        not say which weights drew its tokens.
      backoffs: pauses since it was last trusted, each longer than the one before.
      rejections: attempts in a row that ended with an answer which says no.
    """

    target: Target | None = None
    capabilities: Capabilities | None = None
    instance: str | None = None
    proven: Target | None = None
    doubt: Exception | None = None
    trust: Trust = Trust.BACKED_OFF
    drawn: bool = False
    awaited: bool = False
    resets: int = 0
    loads: int = 0
    backoffs: int = 0
    rejections: int = 0

    @property
    def ready(self) -> bool:
        """Returns whether samples of the target can be had from it."""
        return self.doubt is None and self.proven is not None and self.proven is self.target


class ObservedFields(TypedDict, total=False):
    """The types of what a task may note in `Observed`."""

    target: Target | None
    capabilities: Capabilities | None
    instance: str | None
    proven: Target | None
    doubt: Exception | None
    trust: Trust
    drawn: bool
    awaited: bool
    resets: int
    loads: int
    backoffs: int
    rejections: int


def next_action(seen: Observed) -> Action | None:
    """Returns what to do about a server; None while there is nothing to do.

    Samples that it drew are proven before the weights change under which they were drawn.
    """
    if seen.trust is Trust.DOUBTED:
        return "back off"
    if seen.trust in (Trust.BACKED_OFF, Trust.ANSWERING):
        return "inspect"
    behind = seen.target is not None and seen.proven is not seen.target
    open_question = seen.trust is Trust.INSPECTED or seen.awaited or (behind and seen.drawn)
    if seen.proven is not None and open_question:
        return "prove"
    if behind:
        return "push"
    return None if seen.trust is Trust.FULL else "trust"


@dataclass(frozen=True)
class Setup:
    """The common set-up of a fleet's servers."""

    expected: Expected
    options: ServerOptions
    share: WeightShare | None
    counts: Counter[str]
    changes: Changes
    in_flight: InFlight = "wait"


class Server:
    """One server.

    Attributes:
      api: its calls.
      observed: what is known of it.
      uses: the number of requests under way.
      report: what the last push cost.
    """

    def __init__(self, api: ServerApi, setup: Setup) -> None:
        self.api = api
        self.observed = Observed()
        self.uses = 0
        self.report: PushReport | None = None
        self._setup, self._options = setup, setup.options
        # Who waits for a proof that begins later: how many attempts had no answer since then.
        self._questions: dict[Question, int] = {}
        self._paused = False
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def _observe(self, **news: Unpack[ObservedFields]) -> None:
        """Notes what was observed, and wakes everybody whom it may concern."""
        self.observed = replace(self.observed, **news)
        self._wake.set()
        self._setup.changes.tell()

    # --- reports and questions of others -------------------------------------------------------

    def state(self) -> str:
        """Returns a line for error messages."""
        seen = self.observed
        version = None if seen.proven is None else seen.proven.version
        why = "ready" if seen.ready else seen.doubt or "being brought to the target"
        return f"{self.api.url}: version {version}, {self.uses} in flight, {shown(why)}"

    def start(self) -> None:
        """Begins to look after the server."""
        self._task = asyncio.create_task(self._keep())
        self._wake.set()

    def aim(self, target: Target | None) -> None:
        """Sets what the server is to serve."""
        if target is None:
            self._answer("failed")
        self._observe(target=target)

    async def looked_at(self) -> None:
        """Returns when its capabilities are known.

        Raises:
          Refused: it cannot be used.
          RolloutError: it did not answer as vLLM does, `wait` seconds after it first failed.
        """
        patience = Patience(self._options.wait)
        while self.observed.capabilities is None or self.observed.doubt is not None:
            self.check()
            doubt = self.observed.doubt
            if doubt is not None and (isinstance(doubt, Refused) or patience.is_over()):
                raise doubt
            await self._setup.changes.wait()

    async def settled(self, target: Target) -> None:
        """Returns when it serves a target, or something is wrong with it."""
        await self._setup.changes.until(
            lambda: self.over or self.observed.proven is target or self.observed.doubt is not None
        )
        self.check()

    def doubts(self, error: Exception, *, weights: bool = False) -> None:
        """Notes that something is wrong with it; with `weights`, that those it serves are."""
        if weights:
            self._reset()
        if self.observed.doubt is None:
            log.warning("%s is left alone for a while: %s", self.api.url, shown(error))
        self._observe(doubt=error, trust=Trust.DOUBTED)

    def release(self) -> None:
        """Counts a request as done."""
        self.uses -= 1
        self._observe(drawn=True)

    async def confirm(self, resets: int) -> ProofVerdict:
        """Returns whether what was drawn since a reset came from the proven weights.

        "failed": it did not, or nobody can tell any more. "unanswered": the server was asked
        twice, and did not say. A proof serves all who asked before it began.
        """
        if self.over or self.observed.resets != resets or self.observed.target is None:
            return "failed"
        question: Question = asyncio.get_running_loop().create_future()
        self._questions[question] = 0
        self._observe(awaited=True)
        return await question

    def _answer(self, verdict: ProofVerdict, questions: list[Question] | None = None) -> None:
        """Answers questions, by default all."""
        for question in list(self._questions if questions is None else questions):
            if not question.done():
                question.set_result(verdict)
            self._questions.pop(question, None)

    @property
    def over(self) -> bool:
        """Returns whether nobody looks after it any more."""
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
                while (action := next_action(self.observed)) is not None:
                    await self._act(action)
        finally:
            self._answer("failed")
            self._setup.changes.tell()

    async def _act(self, action: Action) -> None:
        doubt = self.observed.doubt
        trust = Trust.FULL
        try:
            match action:
                case "back off":
                    await asyncio.sleep(backoff_seconds(self.observed.backoffs))
                    self._observe(backoffs=self.observed.backoffs + 1)
                    trust = Trust.BACKED_OFF
                case "inspect":
                    trust = await self._inspect()
                case "prove":
                    trust = await self._prove_again()
                case "push":
                    trust = await self._push()
                case "trust":
                    if doubt is not None:
                        log.warning("%s is back", self.api.url)
                    self._observe(doubt=None, trust=trust, backoffs=0, rejections=0)
        except (RolloutError, Refused) as error:
            self._fail(error)
        else:
            # A doubt that came up meanwhile is not answered by this.
            if self.observed.doubt is doubt or action == "back off":
                self._observe(trust=trust)

    def _fail(self, error: RolloutError | Refused) -> None:
        """Doubts the server; one that says no often enough at the start never says yes.

        The attempt counts for whoever waits for a proof: some have waited enough.
        """
        self._questions = {one: n + 1 for one, n in self._questions.items()}
        tired = [one for one, n in self._questions.items() if n >= UNANSWERED]
        self._answer("unanswered", tired)
        status = getattr(error, "status", None)
        rejections = 0 if status is None or status in BUSY else self.observed.rejections + 1
        self._observe(awaited=bool(self._questions), rejections=rejections)
        never = self.observed.capabilities is None and rejections >= self._options.attempts
        self.doubts(Refused(f"{error} (asked {rejections} times)") if never else error)

    def _reset(self) -> None:
        """Forgets what it serves: samples since the last time may have come from anything."""
        self._answer("failed")
        self._observe(proven=None, resets=self.observed.resets + 1)

    async def _inspect(self) -> Trust:
        """Learns who answers, resumes it if it is paused, and looks at it if it is new."""
        doubt = self.observed.doubt
        now = await capabilities.describe(self.api)
        if self.observed.doubt is doubt:
            self._observe(trust=Trust.ANSWERING)
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
        seen = self.observed
        if seen.capabilities is not None and now["instance"] == seen.instance:
            return Trust.INSPECTED
        if seen.instance is not None:
            self._reset()
        self._observe(instance=None)
        able = await capabilities.look(self.api, now, self._setup.expected)
        if (before := seen.capabilities) is not None:
            served, was = (able.dtype, able.log_probs), (before.dtype, before.log_probs)
            if able.dtype != before.dtype or (able.log_probs == "raw" != before.log_probs):
                raise Unavailable(
                    f"{able.url} serves {' and '.join(served)} log-probs since a new start,"
                    f" and {' and '.join(was)} ones before: start it as it was"
                )
        if self._setup.in_flight == "keep" and not able.native:
            raise Refused(
                f"{able.url} does not say which version drew which token, and in_flight='keep' "
                "mixes the log-probs of several: use 'wait' or 'abort', or start vLLM >= 0.32 "
                "with --enable-scale-out"
            )
        self._observe(capabilities=able, instance=now["instance"])
        return Trust.INSPECTED

    async def _prove_again(self) -> Trust:
        """Has it prove what it has proven before; if it cannot, looks at it anew."""
        seen = self.observed
        assert seen.proven is not None
        if seen.target is not None and seen.target is not seen.proven:
            await self._drain()
        try:
            await self._prove(seen.proven)
        except Unproven as error:
            log.warning("%s, and nobody pushed them: %s", self.api.url, shown(error))
            self._reset()
            return Trust.BACKED_OFF
        return max(self.observed.trust, Trust.PROVEN)  # a doubted server's is still to come back

    async def _drain(self) -> None:
        """Waits for the requests under way, where a push has to."""
        if self._setup.in_flight != "wait":
            return
        try:
            async with asyncio.timeout(self._options.timeout):
                await self._setup.changes.until(lambda: not self.uses)
        except TimeoutError as error:
            raise Unavailable(f"{self.api.url} does not finish its requests") from error

    async def _prove(self, target: Target) -> float:
        """Has it prove a target; returns the probe's gap in nats.

        Raises:
          Unproven: it has other weights, or is another process.
          RolloutError: it did not answer.
        """
        seen = self.observed
        assert seen.capabilities is not None
        questions = list(self._questions)
        self._observe(awaited=False, drawn=False)
        try:
            gap = await prove(self.api, seen.capabilities, target)
            now = await capabilities.describe(self.api)
            if (now["instance"], now["sha256"]) != (seen.instance, target.release.sha256):
                raise Unproven(f"{self.api.url} has been started again or loaded by somebody else")
        except RolloutError as error:
            kind = PROOFS_FAILED if isinstance(error, Unproven) else PROOFS_UNANSWERED
            self._setup.counts[kind] += 1
            self._observe(drawn=True)
            raise
        self._answer("proven", questions)
        return gap

    async def _push(self) -> Trust:
        target = self.observed.target
        assert target is not None
        await self._drain()
        seen = self.observed
        if seen.proven is not None and seen.drawn and not self.uses:
            return seen.trust  # samples came meanwhile: they are proven before the weights change
        # Where requests go on under a push, it may fail for the same reason as they.
        unproven = self.uses > 0 or self.observed.drawn
        self._observe(proven=None)
        try:
            self.report = await self._pushed(target)
        except BaseException as error:
            if unproven:
                self._reset()
            if isinstance(error, PublishRefused) and self.observed.target is not target:
                # The next weights, which are its target by now, are not what it refused.
                raise Unavailable(str(error)) from error
            raise
        self._observe(proven=target)
        return max(self.observed.trust, Trust.PROVEN)

    async def _pushed(self, target: Target) -> PushReport:
        """Pauses it, loads a target, resumes it, and has it prove the target."""
        able = self.observed.capabilities
        assert able is not None
        begin = time.perf_counter()
        self._observe(loads=self.observed.loads + 1)
        self._paused = True
        try:
            await self.api.pause(self._setup.in_flight)
            start = time.perf_counter()
            moved = await load(self.api, able, target.release, share=self._setup.share)
            load_seconds = time.perf_counter() - start
            # vLLM does not clear the prefix cache itself in mode "keep".
            await self.api.reset_prefix_cache()
        except BaseException:
            with suppress(RolloutError):  # what is left paused the next attempt resumes
                await self._resume()
            raise
        await self._resume()
        resumed = time.perf_counter()
        gap = await self._prove(target)
        return PushReport(
            bytes=moved,
            load_seconds=load_seconds,
            prove_seconds=time.perf_counter() - resumed,
            paused_seconds=resumed - begin,
            probe_gap=gap,
        )

    async def _resume(self) -> None:
        await self.api.resume()
        if await self.api.is_paused():
            raise Unavailable(f"{self.api.url} says that it is resumed, and is paused")
        self._paused = False
