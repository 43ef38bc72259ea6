"""The beginning of a run: with its first state, or with that of a checkpoint.

The checkpoint is read, checked and restored first; only then anything in the folder is moved or
rewound, so that a refusal leaves the run as it was.
"""

from typing import Any, NamedTuple

import jax

from ogrpo.learner.checkpoint import CheckpointError, Checkpoints
from ogrpo.learner.hosts import from_first, on_first
from ogrpo.learner.state import TrainState
from ogrpo.loop.state import LoopState, array_shapes, check_frozen, resume, start
from ogrpo.policy import Params
from ogrpo.report.run_dir import RunDirError
from ogrpo.rewards.judge import RewardCounts
from ogrpo.run.origin import check_origin, origin
from ogrpo.run.session import Session, counting
from ogrpo.setup.build import batching_line
from ogrpo.setup.devices import memory_lines


class Choice(NamedTuple):
    """The checkpoint that a run goes on from."""

    step: int | None
    """The checkpoint's; None begins anew."""
    damaged: dict[int, str]
    """Newer checkpoints that cannot be used, and why."""
    later: list[int]
    """Newer checkpoints that --resume-from goes back behind."""


def begin(session: Session, params: Params, checkpoints: Checkpoints) -> LoopState:
    """Returns the first state, or a checkpoint's; later records will be written again."""
    if not session.config.goes_on:
        return _first(session, params, checkpoints)
    choice = choose(session, checkpoints)
    if choice.step is None:
        return _over(session, params, choice, checkpoints)
    return _resumed(session, params, choice.step, choice, checkpoints)


def choose(session: Session, checkpoints: Checkpoints) -> Choice:
    """Returns the checkpoint that --resume-from names, or the newest usable; changes nothing.

    Raises:
      CheckpointError: none can be used, or not the one of --resume-from.
      RunDirError: there is none, and that cannot be because the run had not come so far.
      ValueError: there is no checkpoint of that step.
    """
    target, steps = session.config.resume_from, checkpoints.steps
    if target is not None:
        later = [step for step in steps if step > target]
        if target not in steps:
            saved = ", ".join(map(str, steps)) or "none"
            if target != 0:
                raise ValueError(
                    f"there is no checkpoint of step {target}; there are: {saved}, and 0"
                )
            return Choice(None, {}, later)
        if (reason := checkpoints.damage(target)) is not None:
            raise CheckpointError(f"the checkpoint of step {target} cannot be used: {reason}")
        return Choice(target, {}, later)
    damaged: dict[int, str] = {}
    for step in reversed(steps):
        if (reason := checkpoints.damage(step)) is None:
            return Choice(step, damaged, [])
        damaged[step] = reason
    if damaged:
        listed = "".join(f"\n  step {step}: {reason}" for step, reason in damaged.items())
        raise CheckpointError(
            f"no checkpoint in {session.run.checkpoints} can be used:{listed}\n{_BEGIN_AGAIN}"
        )
    exists = checkpoints.exists
    from_first(lambda: _check_young(session, exists=exists))
    return Choice(None, {}, [])


_BEGIN_AGAIN = (
    "put back a copy of it, begin again with --resume-from 0 (what is there is set aside), or"
    " start a new run with another --run-dir"
)


def _check_young(session: Session, *, exists: bool) -> None:
    """Refuses a run that has no checkpoint although it came far enough for one, or for its folder.

    The folder is made before the first record, and the first checkpoint after `checkpoint.every`.
    """
    run, records = session.run, session.run.read_metrics()
    begun = bool(records) or any(run.experience.glob("*.parquet"))
    reached = records[-1]["step"] if records else 0
    every = run.read_config().get("checkpoint", {}).get("every", session.config.checkpoint.every)
    if reached <= every and (exists or not begun):
        return
    raise RunDirError(
        f"the run in {run.path} has records up to step {reached} and no checkpoint in"
        f" {run.checkpoints}: {_BEGIN_AGAIN}"
    )


def _first(session: Session, params: Params, checkpoints: Checkpoints) -> LoopState:
    checkpoints.make()
    initial = session.parts.learner.init(params)
    describe(session, initial)
    return start(initial, session.parts)


def _over(session: Session, params: Params, choice: Choice, checkpoints: Checkpoints) -> LoopState:
    """Returns the first state of a run that was begun before."""
    again = session.config.resume_from is not None
    session.say("starting over" if again else "no checkpoint yet: starting over")
    _set_aside(session, choice, checkpoints)
    _rewind(session, -1, keep=again)
    return _first(session, params, checkpoints)


def _resumed(
    session: Session, params: Params, step: int, choice: Choice, checkpoints: Checkpoints
) -> LoopState:
    """Returns the state of a checkpoint, read in place of `params`: both at once may not fit.

    What stands beneath adapters is in no checkpoint, and stays.
    """
    before = checkpoints.progress(step)
    _check_options(session, before, step)
    shapes = session.parts.learner.shapes(params)
    describe(session, shapes)
    check_frozen(shapes.frozen, before)
    if not shapes.frozen:
        for leaf in jax.tree.leaves(params):
            leaf.delete()
    arrays, _ = checkpoints.restore(step, array_shapes(shapes, session.parts))
    session.say(f"resuming after step {step}")
    _set_aside(session, choice, checkpoints)
    # A loop at step 0 begins with that step's own record, as one without its evaluation does.
    again = step == 0 or before["unevaluated"] is not None
    _rewind(session, step - 1 if again else step, keep=bool(choice.later))
    for name, reward in counting(session).items():
        reward.counts = RewardCounts(**before["judged"].get(name, {}))
    session.prepared.judge.go_on_from(before["rewards"])
    return resume(arrays, before, session.parts, frozen=shapes.frozen)


def _check_options(session: Session, before: dict[str, Any], step: int) -> None:
    config = session.config
    now = origin(session.prepared)
    for line in check_origin(before["origin"], now, anyway=config.resume_anyway):
        session.say(f"since the checkpoint: {line}")
    if config.schedule.steps < step:
        raise ValueError(
            f"schedule.steps is {config.schedule.steps}, but the checkpoint is of step {step}: give"
            f" at least {step}, or go back with --resume-from"
        )


def _set_aside(session: Session, choice: Choice, checkpoints: Checkpoints) -> None:
    """Moves aside checkpoints that the run does not go on from, and names them."""
    for step in choice.later:
        session.say(f"the checkpoint of step {step} is now {checkpoints.set_aside(step)}")
    for step, reason in choice.damaged.items():
        place = checkpoints.set_aside(step)
        session.say(f"the checkpoint of step {step} is damaged ({reason}); it is now {place}")


def _rewind(session: Session, step: int, *, keep: bool) -> None:
    dropped = on_first(lambda: session.run.rewind(step, keep=keep))
    if dropped is None or not any(dropped):
        return
    where = f"; they are kept in {session.run.aside}" if keep else ""
    session.say(f"{dropped.records} records will be written again{where}")
    if dropped.broken:
        session.say(f"{dropped.broken} lines of {session.run.metrics} were no records: left out")


def describe(session: Session, state: TrainState) -> None:
    """Says what the algorithm is, what the train state takes, and how batches are laid out."""
    session.say(f"algorithm: {session.title}")
    for line in memory_lines(session.config, state, session.devices):
        session.say(line)
    session.say(batching_line(session.config))
