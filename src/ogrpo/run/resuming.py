"""The beginning of a run: with its first state, or with that of a checkpoint.

The checkpoint is read, checked and restored first; only then anything in the folder is moved or
rewound, so that a refusal leaves the run as it was.

Whether a run may go on from a checkpoint with something else is one of three: what only shows,
writes, places or rounds, and how many steps the learning rate and the stages are fitted to, is
applied and shown (`APPLIED`, versions, devices); what makes the rest of
the run another experiment is refused unless the user says so (`--resume-anyway`); and what the
checkpoint's arrays or scores cannot go with is refused always (`NEVER`).
"""

import dataclasses
import hashlib
import json
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax

from ogrpo.config.train import TrainConfig
from ogrpo.learner.checkpoint import CheckpointError, Checkpoints
from ogrpo.learner.hosts import from_first, is_first, on_first
from ogrpo.learner.state import TrainState
from ogrpo.loop.collect import start
from ogrpo.loop.state import LoopState, check_frozen, first_arrays, resume
from ogrpo.policy import Params
from ogrpo.report.run_dir import RunDirError
from ogrpo.rewards.judge import RewardCounts
from ogrpo.rollout.options import ServerOptions
from ogrpo.run.session import Session, as_json, counting
from ogrpo.setup.build import batching_line
from ogrpo.setup.devices import memory_lines
from ogrpo.setup.prepare import Prepared
from ogrpo.setup.processes import digests
from ogrpo.system.values import dashed, from_json, require

APPLIED = (
    *("schedule.steps", "schedule.evaluate_every", "checkpoint.", "kernels.", "mesh."),
    *("evaluation.prompts", "evaluation.samples", "evaluation.engine"),
    *("evaluation.batch", "evaluation.max_tokens", "evaluation.gradient_variance"),
    *("evaluation.token_samples", "evaluation.path", "replay.keep"),
    *(f"rollout.{field.name}" for field in dataclasses.fields(ServerOptions)),
    *("rollout.workers", "rollout.prompts_per_call", "rollout.in_flight"),
    *("rollout.mismatch_limit",),
    *("reward.seconds", "reward.processes", "reward.call_seconds", "reward.memory_gib"),
    *("model.remat", "model.path", "data.path"),
    *("optimizer.microbatches", "optimizer.batching", "optimizer.max_skipped"),
    "optimizer.microbatch_tokens",
    *("warm_start.cache", "warm_start.retrain", "strict", "stop_when_worse", "track"),
    "push_to_hub",
)
"""Options that may change on resuming; a name that ends with a dot stands for a table."""
NEVER = {
    "preset": "leave the option out",
    "task": "leave the option out, or start another run",
    "lora.": "the checkpoint holds these adapters: leave the options out",
    "optimizer.moments": "the checkpoint holds these moments: leave the option out",
    "by": "its scores would not compare: leave the option out, or start another run",
    "evaluation.split": "its scores would not compare: leave the option out, or start another run",
    "evaluation.task": "its scores would not compare: leave the option out, or start another run",
}
"""Options that may not, with the reason or the remedy."""
PACKAGES = ("ogrpo", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")


def origin(prepared: Prepared) -> dict[str, Any]:
    """Returns what a checkpoint says of how it was made: plain JSON."""
    config = as_json(prepared.config)
    return {
        "config": config,
        "config_sha256": hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest(),
        "data": {name: sha for name, sha in digests(prepared).items() if name != "configuration"},
        "versions": {"python": platform.python_version(), **{p: version(p) for p in PACKAGES}},
        "devices": {
            "kind": jax.devices()[0].device_kind,
            "count": jax.device_count(),
            "processes": jax.process_count(),
        },
    }


def check_origin(before: Mapping[str, Any], now: Mapping[str, Any], *, anyway: bool) -> list[str]:
    """Returns what changed since a checkpoint, in lines to show.

    Args:
      before: what the checkpoint says.
      now: what a checkpoint would say now.
      anyway: goes on whatever changed, where that is possible.

    Raises:
      ValueError: something changed that may not, with all of it named.
    """
    written = from_json(TrainConfig, dict(before["config"]))  # with options that came since
    changed = differences(as_json(written), now["config"])
    check_never(changed)
    lines = {n: f"--{dashed(n)}: {old} then, {new} now" for n, (old, new) in changed.items()}
    other = [line for name, line in lines.items() if not any(_covers(p, name) for p in APPLIED)]
    data = differences(before["data"], now["data"])
    moved = [f"{n}: not the checkpoint's" for n, pair in data.items() if None not in pair]
    listed = "\n  ".join([*other, *(line for line in moved if "held-out" not in line)])
    require(
        anyway or not listed,
        f"the run was trained with other options or data:\n  {listed}\n"
        "leave them as they were, or go on all the same with --resume-anyway",
    )
    others = [
        f"{name}: {old} then, {new} now"
        for table in ("versions", "devices")
        for name, (old, new) in differences(before[table], now[table]).items()
    ]
    return [*lines.values(), *others, *moved]


def differences(before: Any, now: Any, prefix: str = "") -> dict[str, tuple[Any, Any]]:
    """Returns the values of two trees of plain values that differ, by their names with dots."""
    if not (isinstance(before, Mapping) and isinstance(now, Mapping)):
        one, other = (json.dumps(value, sort_keys=True) for value in (before, now))
        return {} if one == other or before == now else {prefix: (before, now)}
    changed = {}
    for name in {**before, **now}:
        inner = f"{prefix}.{name}" if prefix else str(name)
        changed |= differences(before.get(name), now.get(name), inner)
    return changed


def check_never(changed: Mapping[str, tuple[Any, Any]]) -> None:
    """Refuses options that cannot change, whatever the user says."""
    for name, (old, new) in changed.items():
        for pattern, remedy in NEVER.items():
            require(
                not _covers(pattern, name),
                f"the run was started with --{dashed(name)} {old}, which cannot change to {new}:"
                f" {remedy}",
            )


def _covers(pattern: str, name: str) -> bool:
    return name == pattern or (pattern.endswith(".") and name.startswith(pattern))


def begin(session: Session, params: Params, checkpoints: Checkpoints) -> LoopState:
    """Returns the first state, or a checkpoint's; later records will be written again."""
    config, parts = session.config, session.parts
    step, behind = choose(session, checkpoints) if config.goes_on else (None, {})
    if step is None:
        initial = parts.learner.init(params)
        describe(session, initial)
        if config.goes_on:
            again = config.resume_from is not None
            session.say("starting over" if again else "no checkpoint yet: starting over")
            with _leaving_behind(session, checkpoints, behind, step=-1, beside=-1, keep=again):
                pass  # the buffer sets its groups aside next: nothing could be put back
        checkpoints.make()
        return start(initial, parts)
    before = checkpoints.progress(step)
    now = origin(session.prepared)
    for line in check_origin(before["origin"], now, anyway=config.resume_anyway):
        session.say(f"since the checkpoint: {line}")
    if config.schedule.steps < step:
        raise ValueError(
            f"schedule.steps is {config.schedule.steps}, but the checkpoint is of step {step}: give"
            f" at least {step}, or go back with --resume-from"
        )
    shapes = parts.learner.shapes(params)
    describe(session, shapes)
    check_frozen(shapes.frozen, before)
    if not shapes.frozen:  # both may not fit; what lies beneath adapters is in no checkpoint
        for leaf in jax.tree.leaves(params):
            leaf.delete()
    arrays, _ = checkpoints.restore(step, first_arrays(shapes, parts.method.reads, shapes.params))
    session.say(f"resuming after step {step}")
    # A loop at step 0 begins with that step's own record, as one without its evaluation does.
    again = step == 0 or before["unevaluated"] is not None
    later = any(reason is None for reason in behind.values())
    last = step - 1 if again else step
    with _leaving_behind(session, checkpoints, behind, step=last, beside=step, keep=later):
        state = resume(arrays, before, parts, frozen=shapes.frozen)
    for name, reward in counting(session).items():
        reward.counts = RewardCounts(**before["judged"].get(name, {}))
    session.prepared.judge.pool.go_on_from(before["rewards"])
    return state


def choose(session: Session, checkpoints: Checkpoints) -> tuple[int | None, dict[int, str | None]]:
    """Returns the checkpoint that --resume-from names, or the newest usable; changes nothing.

    Returns:
      Its step, None to begin anew; and the newer ones that are left behind, each with its damage or
      None.

    Raises:
      CheckpointError: none can be used, or not the one of --resume-from.
      RunDirError: there is none, and that cannot be because the run had not come so far.
      ValueError: there is no checkpoint of that step.
    """
    target, steps = session.config.resume_from, checkpoints.steps
    if target is not None:
        if target not in (0, *steps):
            saved = ", ".join(map(str, steps)) or "none"
            raise ValueError(f"there is no checkpoint of step {target}; there are: {saved}, and 0")
        if target in steps and (reason := checkpoints.damage(target)) is not None:
            raise CheckpointError(f"the checkpoint of step {target} cannot be used: {reason}")
        later: dict[int, str | None] = dict.fromkeys(step for step in steps if step > target)
        return target if target in steps else None, later
    damaged: dict[int, str | None] = {}
    for step in reversed(steps):
        if (reason := checkpoints.damage(step)) is None:
            return step, damaged
        damaged[step] = reason
    if damaged:
        listed = "".join(f"\n  step {step}: {reason}" for step, reason in damaged.items())
        raise CheckpointError(
            f"no checkpoint in {session.run.checkpoints} can be used:{listed}\n{_BEGIN_AGAIN}"
        )
    exists = checkpoints.exists
    from_first(lambda: _check_young(session, exists=exists))
    return None, {}


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


@contextmanager
def _leaving_behind(
    session: Session,
    checkpoints: Checkpoints,
    behind: dict[int, str | None],
    *,
    step: int,
    beside: int,
    keep: bool,
) -> Iterator[None]:
    """Moves aside the checkpoints and drops the records that the run does not go on from.

    What the block refuses, as the replay buffer may, leaves them as they were.

    Args:
      session: names them.
      checkpoints: of the run.
      behind: as `choose` returns them.
      step: of the last record that stays.
      beside: of the last token samples and certificate that stay, which precede an evaluation.
      keep: whether the others are kept beside it.
    """
    rewind = partial(session.run.rewind, step, beside=beside, keep=keep)
    on_first(partial(rewind, dry=True))
    places: dict[int, Path] = {}
    try:
        for newer in behind:
            places[newer] = checkpoints.set_aside(newer)
        yield
    except BaseException:
        for newer, place in places.items() if is_first() else ():  # the others may not be here
            place.rename(session.run.checkpoints / str(newer))
        raise
    for newer, reason in behind.items():
        damaged = "" if reason is None else f"is damaged ({reason}); it "
        session.say(f"the checkpoint of step {newer} {damaged}is now {places[newer]}")
    dropped = on_first(rewind)
    if dropped is None:
        return
    if dropped.last < step:
        session.say(
            f"{session.run.metrics} ends at step {dropped.last}: the records up to step {step} are"
            " missing (to have them, stop, put back a copy of the file, and resume)",
            style="yellow",
        )
    if not dropped.records and not dropped.broken:
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
