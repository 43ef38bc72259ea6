"""The origin of a checkpoint, and whether a run may go on from it with something else.

Three kinds of change: what only shows, writes, places or rounds is applied and shown (`APPLIED`,
versions, devices); what makes the rest of the run another experiment is refused unless the user
says so (`--resume-anyway`); and what the checkpoint's arrays or scores cannot go with is refused
always (`NEVER`).
"""

import dataclasses
import hashlib
import json
import platform
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import jax

from ogrpo.config.rollout import Servers
from ogrpo.config.train import TrainConfig
from ogrpo.config.values import from_json, require
from ogrpo.run.session import as_json
from ogrpo.setup.prepare import Prepared
from ogrpo.setup.processes import digests

APPLIED = (
    *("schedule.steps", "schedule.evaluate_every", "checkpoint.", "kernels.", "mesh."),
    *("evaluation.prompts", "evaluation.temperature", "evaluation.samples", "evaluation.engine"),
    *("evaluation.batch", "evaluation.max_tokens", "evaluation.gradient_variance"),
    *("evaluation.token_samples", "evaluation.path", "replay.keep"),
    *(f"rollout.{field.name}" for field in dataclasses.fields(Servers)),
    *("rollout.workers", "rollout.prompts_per_call", "rollout.in_flight", "rollout.push"),
    *("rollout.mismatch_limit",),
    *("reward.seconds", "reward.processes", "reward.call_seconds", "reward.memory_gib"),
    *("model.remat", "model.path", "data.path", "logs.path"),
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
    "optimizer.average": "the checkpoint holds this mean, or none: leave the option out",
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
    changed = differences(known(before["config"]), now["config"])
    check_never(changed)
    lines = [_line(name, *values) for name, values in changed.items()]
    other = [
        _line(name, *values)
        for name, values in changed.items()
        if not any(_covers(pattern, name) for pattern in APPLIED)
    ]
    data = differences(before["data"], now["data"])
    moved = [f"{name}: not the checkpoint's" for name in data]
    serious = [line for line in moved if "held-out" not in line]
    listed = "\n  ".join([*other, *serious])
    require(
        anyway or not listed,
        f"the run was trained with other options or data:\n  {listed}\n"
        "leave them as they were, or go on all the same with --resume-anyway",
    )
    for table in ("versions", "devices"):
        others = differences(before[table], now[table])
        lines += [f"{name}: {old} then, {new} now" for name, (old, new) in others.items()]
    return [*lines, *moved]


def known(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a config as this version writes it: with the options that it did not have yet."""
    return as_json(from_json(TrainConfig, dict(config)))


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
                f"the run was started with {_option(name)} {old}, which cannot change to {new}:"
                f" {remedy}",
            )


def _covers(pattern: str, name: str) -> bool:
    return name == pattern or (pattern.endswith(".") and name.startswith(pattern))


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _line(name: str, old: Any, new: Any) -> str:
    return f"{_option(name)}: {old} then, {new} now"
