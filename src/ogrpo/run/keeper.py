"""Records and checkpoints of a run while it goes on, and the state that an error leaves.

A record is on disk before the checkpoint that counts it. Whatever ends the loop, the newest state
that is whole is saved first; the error goes on with a note of what was saved and how to go on.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import jax

from ogrpo.learner.checkpoint import CheckpointError, Checkpoints
from ogrpo.learner.hosts import assembled, is_first, on_first
from ogrpo.loop.parts import Record
from ogrpo.loop.state import LoopState
from ogrpo.loop.tokens import token_record
from ogrpo.report.certificates import ledger
from ogrpo.report.run_dir import MetricsWriter, plain
from ogrpo.run.resuming import origin
from ogrpo.run.session import Session, outcomes
from ogrpo.system.files import describe
from ogrpo.system.terminal import RunNote

PATIENCE = 60.0
"""Seconds in which the other processes must have come, if they are to save together."""


class Keeper:
    """Keeps the newest whole state of a run."""

    def __init__(
        self, session: Session, checkpoints: Checkpoints, metrics: MetricsWriter, state: LoopState
    ) -> None:
        self._session, self._checkpoints, self._metrics = session, checkpoints, metrics
        self._origin = origin(session.prepared)
        self._written, self._beside = True, state.step
        self._hold(state, None)

    def before_evaluation(self, state: LoopState, record: Callable[[], Record]) -> None:
        """Takes a step that is complete but for its evaluation."""
        self._written = False  # until the state and its record belong together
        self._hold(state, record)
        self._write_beside(state)
        self._written = True

    def take(self, state: LoopState, record: Record) -> None:
        """Takes a step that is complete, and writes its record."""
        self._written = False
        self._hold(state, None)
        if is_first():
            self._write_beside(state)
            self._metrics.write(record)
        self._written = True

    def _write_beside(self, state: LoopState) -> None:
        """Writes a step's token samples and certificate, once: an evaluation after it may fail."""
        if state.step <= self._beside or not is_first():
            return
        run, certified = self._session.run, state.certificate
        if state.token_samples:
            with MetricsWriter(run.tokens) as writer:
                decode = self._session.prepared.tokenizer.decode
                writer.write(token_record(state.step, state.token_samples, decode))
        if certified is not None and certified.step > self._beside:
            with MetricsWriter(run.certificates) as writer:
                writer.write(ledger(*certified))
        self._beside = state.step

    def _hold(self, state: LoopState, unevaluated: Callable[[], Record] | None) -> None:
        self._state, self._unevaluated = state, unevaluated
        self._changes = state.buffer.changes

    def save(self) -> None:
        """Writes the newest state as a checkpoint, with rewards' counts and the run's origin."""
        state, checkpoints = self._state, self._checkpoints
        on_first(self._metrics.sync)
        counts = {name: each._asdict() for name, each in outcomes(self._session).items()}
        rewards = dict(self._session.prepared.judge.pool.metrics())
        beside = {"judged": counts, "rewards": rewards, "origin": self._origin}
        checkpoints.save(state.step, state.arrays(), {**state.progress(), **beside})
        if not self._session.config.replay.keep:
            kept = map(checkpoints.progress, checkpoints.steps)
            state.buffer.prune(each["buffer"] for each in kept)

    @contextmanager
    def rescuing(self) -> Iterator[None]:
        """Saves what is whole when the block ends by an error, and says so beside the error."""
        try:
            yield
        except BaseException as error:
            error.add_note(RunNote(self._rescue(error)))
            raise

    def _rescue(self, error: BaseException) -> str:
        """Saves the newest state, if it is whole; returns what came of it, and the way on.

        It is whole where it is as it was when it was taken: its record is written, no update took
        its arrays, and nothing was put into its buffer.
        """
        state = self._state
        try:
            leaves = jax.tree.leaves(state.arrays())
            there = not any(isinstance(leaf, jax.Array) and leaf.is_deleted() for leaf in leaves)
            mine = there and state.buffer.changes == self._changes, self._written
            said = assembled(mine, seconds=PATIENCE)
            if said is None:
                what = "the other processes did not meet the error, and nothing could be saved"
                what += " with them"
            elif not all(written for _, written in said):
                what = f"the record of step {state.step} could not be written, nor its state be"
                what += " saved"
            elif not all(whole for whole, _ in said):
                what = f"step {state.step + 1} was under way, and what it had changed is not saved"
            else:
                if self._unevaluated is not None:
                    record = on_first(self._unevaluated)
                    self._state = replace(state, unevaluated=plain(record or {}))
                self.save()
                what = f"the state after step {state.step} is saved"
        except BaseException as second:  # the first error is the one to be seen
            if isinstance(error, CheckpointError) and isinstance(second, CheckpointError):
                what = f"the state after step {state.step} is not saved"  # the error says why
            elif isinstance(second, OSError):
                what = f"the state could not be saved: {describe(second)}"
            else:
                name = "" if isinstance(second, CheckpointError) else f"{type(second).__name__}: "
                what = f"the state could not be saved: {name}{second}"
        # No word to other processes, which may be gone.
        newest = max(self._checkpoints.listed(), default=None)
        if newest is None:
            where = "no checkpoint was written yet; begin again with"
        elif newest == state.step:
            where = "go on with"
        else:
            where = f"go on after step {newest} with"
        return f"{what}; {where}:\n  {self._session.resume_command}"
