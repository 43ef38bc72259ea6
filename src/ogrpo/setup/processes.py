"""Several processes of one run: finding each other, and sharing what the first alone does.

Every process runs the whole program: it reads the task and the model, and runs the loop. The first
alone talks to servers, judges answers, keeps the replay buffer and writes; its results go to the
others, so that all take the same branches. Arrays are cut over all devices.

    engine      servers: the first publishes and requests; no other gets the groups of an evaluation
    collector   the first's batches, sent to all; over the embedded sampler all sample in step
    buffer      the first's draws, sent to all
    rewards     of an evaluation, sent to all
    run folder  written by the first

Methods of the shared parts are called by all processes in the same order, from the loop's thread
alone.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Any, Generic, TypeVar, cast

import jax
import numpy as np
from rich.console import Console

from ogrpo.config.train import TrainConfig
from ogrpo.config.update import Processes
from ogrpo.data.replay import Draw, Experience, ReplayBuffer
from ogrpo.learner.hosts import everyone, fetch, from_first, is_first, on_first, several
from ogrpo.loop.parts import Parts
from ogrpo.policy import DecoderConfig, Params
from ogrpo.protocol import Engine, Group, IntArray, Sampling
from ogrpo.rollout.collection import CollectionError, Collector, Request, Rewarded, RewardedBatch
from ogrpo.setup.model import make_model
from ogrpo.setup.prepare import Prepared
from ogrpo.system.values import require, to_json
from ogrpo.tasks.example import Example

T = TypeVar("T")
P = TypeVar("P", bound=Engine | Collector)
MAY_DIFFER = ("processes", "run_dir")
"""Options that may differ between processes: only the first one's folder is looked at."""


def start_processes(processes: Processes) -> None:
    """Finds the other processes of the run; returns when all are there.

    Nothing may have touched a device before. Where the caller called `jax.distributed.initialize`,
    that stands.

    Raises:
      ValueError: they did not come, or there is nothing to find them by.
    """
    if not processes.several or jax.distributed.is_initialized():
        return
    jax.config.update("jax_cpu_collectives_implementation", "gloo")  # of CPUs alone
    try:
        if processes.auto:
            jax.distributed.initialize()
        else:  # with everything named, JAX is not to ask a cluster for the rest
            named = processes.coordinator, processes.count, processes.id
            jax.distributed.initialize(*named, cluster_detection_method="deactivate")
    except (RuntimeError, ValueError) as error:
        where = "under --processes.auto" if processes.auto else f"at {processes.coordinator}"
        raise ValueError(f"the processes did not find each other {where}: {error}") from error


def check_processes(config: TrainConfig) -> None:
    """Refuses what several processes cannot do together."""
    if not several():
        return
    require(
        not config.warm_start.solutions,
        "warm-start.solutions is True, and several processes do not imitate together: imitate in a"
        " run of one, and start all from its result with --model.path",
    )
    if config.rollout.url:
        return
    for option, value, only in (
        ("schedule.sync-offset", config.schedule.sync_offset, 0),
        ("rollout.workers", config.rollout.workers, 1),
    ):
        require(
            value == only,
            f"{option} is {value}, but the embedded sampler of {jax.process_count()} processes"
            f" samples in step with training: give {only}, or servers by --rollout.url",
        )


def check_alike(prepared: Prepared) -> None:
    """Refuses processes that have other options, or that read another task or tokenizer."""
    if not several():
        return
    hashes = everyone(digests(prepared))
    for what in hashes[0]:
        others = [n for n, each in enumerate(hashes) if each[what] != hashes[0][what]]
        require(
            not others,
            f"the {what} of processes {others} differs from that of process 0: start all of them"
            " with the same options, and let all read the same files",
        )


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else type(value).__name__


def digests(prepared: Prepared) -> dict[str, str]:
    """Returns SHA-256 of what all processes, and a run that is resumed, must agree on."""
    options = {k: v for k, v in to_json(prepared.config).items() if k not in MAY_DIFFER}

    def problems(prompts: Sequence[IntArray], examples: Sequence[Example]) -> bytes:
        columns = [sorted(example.columns.items()) for example in examples]  # which rewards see
        said = json.dumps(columns, skipkeys=True, default=_plain)
        arrays = [np.array([len(ids) for ids in prompts]), *prompts]
        return b"".join([*(np.ascontiguousarray(ids).tobytes() for ids in arrays), said.encode()])

    contents = {
        "configuration": json.dumps(options, sort_keys=True, default=str).encode(),
        "tokenizer": prepared.tokenizer.backend.to_str().encode(),
        "training problems": problems(prepared.prompts.train, prepared.task.train),
        "held-out problems": problems(prepared.prompts.heldout, prepared.heldout),
    }
    return {what: hashlib.sha256(content).hexdigest() for what, content in contents.items()}


def same_model(prepared: Prepared, console: Console) -> tuple[DecoderConfig, Params]:
    """Returns the decoder and its first parameters, the same in all processes.

    All read a folder or draw random weights for themselves; imitation rounds as its machine does,
    and is left to the first.
    """
    if not several() or not prepared.config.made_here:
        return make_model(prepared, console)

    def imitated() -> tuple[DecoderConfig, Params]:
        decoder, params = make_model(prepared, console)
        return decoder, jax.tree.map(np.asarray, params)

    return from_first(imitated)


class FirstProcessPart(Generic[T]):
    """Part of a run that the first process alone has.

    Args:
      part: that of the first process; None in the others.
    """

    def __init__(self, part: T | None) -> None:
        self.part = part

    @property
    def first(self) -> T:
        """The part, in the first process."""
        assert self.part is not None
        return self.part


class Publisher(FirstProcessPart[P]):
    """An engine or collector of the first process, for which all bring their weights together."""

    version = -1
    """The version published last through this, -1 before any."""

    def publish(self, params: Any, version: int) -> None:
        """Fetches the weights from all processes, and has the first publish them."""
        host = fetch(params, everywhere=False)
        on_first(lambda: self.first.publish(host, version))
        self.version = version

    def metrics(self) -> Mapping[str, float]:
        """Returns those of the first process, which makes the records."""
        return {} if self.part is None else self.part.metrics()


class SharedEngine(Publisher[Engine]):
    """Servers that the first process talks to, behind the engine interface of all."""

    def generate(self, prompts: Sequence[IntArray], sampling: Sampling, seed: int) -> list[Group]:
        """Draws the groups in the first process; returns none in the others."""
        return on_first(lambda: self.first.generate(prompts, sampling, seed)) or []


class SharedCollector(Publisher[Collector], AbstractContextManager["SharedCollector"]):
    """The collector of the first process over servers; all take its batches.

    Args:
      engine: which the first process's collector alone calls.
      arguments, options: as `Collector` takes them.
    """

    def __init__(self, engine: SharedEngine, *arguments: Any, **options: Any) -> None:
        super().__init__(on_first(lambda: Collector(engine.first, *arguments, **options)))
        self._engine = engine

    def request(self, until: int) -> None:
        """Requests batches as `Collector.request`."""
        if self.part is not None:
            self.part.request(until)

    def take(self, step: int) -> RewardedBatch:
        """Returns the first process's batch; all wait for it."""
        return from_first(lambda: self.first.take(step))

    @contextmanager
    def alone(self) -> Iterator[Engine]:
        """Yields the engine, while the first process's collector rests."""
        with ExitStack() as stack:
            on_first(lambda: stack.enter_context(self.first.alone()))
            yield self._engine

    def __exit__(self, *_: object) -> None:
        """Closes it."""
        if self.part is not None:
            self.part.close()


class LockstepCollector(Collector):
    """The collector of each process over the embedded sampler; all take the first's batches."""

    def take(self, step: int) -> RewardedBatch:
        """Returns the first process's batch; the others draw theirs too."""
        take = super().take
        failed: CollectionError | None = None
        if not is_first():
            try:
                take(step)
            except CollectionError as error:  # where the first meets it too, that one's is raised
                failed = error
        taken = from_first(lambda: take(step))
        if failed is not None:
            raise failed
        return taken


def _unjudged(_request: Request, _places: Sequence[int], groups: Sequence[Group]) -> list[Rewarded]:
    """Returns the groups without rewards: those of the first process's come with its batch."""
    return [Rewarded(group, np.zeros(len(group.completions), np.float32)) for group in groups]


class SharedBuffer(FirstProcessPart[ReplayBuffer]):
    """The first process's replay buffer, whose draws all processes get."""

    def insert(self, experiences: Sequence[Experience]) -> None:
        """Inserts groups as `ReplayBuffer.insert`."""
        on_first(lambda: self.first.insert(experiences))

    def expire(self, version: int) -> None:
        """Drops groups as `ReplayBuffer.expire`."""
        on_first(lambda: self.first.expire(version))

    def sample(self, count: int, *, seed: int) -> Draw:
        """Draws as `ReplayBuffer.sample`, and sends the draw to all."""
        return from_first(lambda: self.first.sample(count, seed=seed))

    @property
    def changes(self) -> int:
        """Changes of the first process's; 0 in the others."""
        return 0 if self.part is None else self.part.changes

    def statistics(self) -> dict[str, float]:
        """Returns those of the first process, which makes the records."""
        return {} if self.part is None else self.part.statistics()

    def state(self) -> dict[str, Any]:
        """Returns the first process's description for a checkpoint; nothing in the others."""
        return on_first(lambda: self.first.state()) or {}

    def prune(self, states: Iterable[dict[str, Any]] = ()) -> None:
        """Deletes files as `ReplayBuffer.prune`."""
        held = list(states)  # read from checkpoints, which all processes read together
        on_first(lambda: self.first.prune(held))


def shared_parts(parts: Parts) -> Parts:
    """Returns the parts of a loop that several processes run; the same where there is one."""
    if not several():
        return parts
    judge, make = parts.evaluator.judge, parts.make_buffer
    servers = isinstance(parts.collection.engine, SharedEngine)
    collector = cast(type[Collector], SharedCollector) if servers else LockstepCollector
    reward_fn = parts.collection.reward_fn if is_first() else _unjudged
    return replace(
        parts,
        make_buffer=lambda state: cast(ReplayBuffer, SharedBuffer(on_first(lambda: make(state)))),
        evaluator=replace(parts.evaluator, judge=lambda groups: from_first(lambda: judge(groups))),
        collection=replace(parts.collection, collector=collector, reward_fn=reward_fn),
    )
