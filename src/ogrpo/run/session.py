"""A run that is under way: what its beginning, its steps and its end share."""

import shlex
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import jax
from rich.console import Console

from ogrpo.config.method import title
from ogrpo.config.train import TrainConfig
from ogrpo.config.update import Processes
from ogrpo.loop.parts import Parts, Record
from ogrpo.loop.state import LoopState
from ogrpo.policy import DecoderConfig
from ogrpo.report.run_dir import RunDir
from ogrpo.rewards.judge import Judge, RewardCounts
from ogrpo.setup.devices import Devices
from ogrpo.setup.prepare import Prepared
from ogrpo.system.terminal import shown, without_secrets
from ogrpo.system.values import to_json

COMPILING = "/jax/core/compile/backend_compile_duration"
"""Event of JAX at the end of each compilation, with its seconds; programs read from the cache of
compiled programs take few."""
_compiled = [0.0]


def _add(event: str, duration_secs: float, **_: object) -> None:
    if event == COMPILING:
        _compiled[0] += duration_secs


jax.monitoring.register_event_duration_secs_listener(_add)


def compiled() -> float:
    """Returns the seconds of this process's compilations so far, of all threads together."""
    return _compiled[0]


@dataclass
class Clock:
    """Marks of the moments at which a part of a run ended."""

    marks: list[tuple[str, float, float]] = field(
        default_factory=lambda: [("", time.monotonic(), compiled())]
    )
    """Part, `time.monotonic()` at its end, and the seconds of compiling so far."""

    def mark(self, part: str) -> None:
        """Ends a part of the run, which began where the one before ended."""
        self.marks.append((part, time.monotonic(), compiled()))

    def split(self) -> list[tuple[str, float, float]]:
        """Returns part, seconds and seconds of compiling among them; what follows is the rest."""
        rest = ("model and page written", time.monotonic(), compiled())
        marks = [*self.marks, rest]
        return [
            (part, end - begin, after - before)
            for (_, begin, before), (part, end, after) in pairwise(marks)
        ]


Callback = Callable[[LoopState, Record], object]
"""Takes the state after a step, and the step's record."""
OF_THIS_CALL = ("run_dir", "resume", "resume_from", "resume_anyway")
"""Options that say how a run is gone on with, and not what it is."""


class Invocation(NamedTuple):
    """The command line, or the lines of Python, that began a run."""

    whole: str
    """The whole of it, for the report."""
    program: str
    """The part of it before the options, which other options may follow."""


@dataclass(frozen=True)
class Session:
    """A run that is ready to go."""

    config: TrainConfig
    run: RunDir
    prepared: Prepared
    decoder: DecoderConfig
    devices: Devices
    parts: Parts
    console: Console
    command: Invocation
    callbacks: tuple[Callback, ...] = ()
    """Called after each step, once its record is on disk; trackers are the first."""
    clock: Clock = field(default_factory=Clock)
    """Begun when the run was asked for."""

    def say(self, text: str, style: str | None = None) -> None:
        """Shows a line as it is: brackets in paths and messages are no markup."""
        line = shown(without_secrets(text))
        self.console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)

    @property
    def title(self) -> str:
        """The method, with what is not its own."""
        return title(self.config)

    @property
    def resume_command(self) -> str:
        """The command that goes on with the run."""
        how = " --resume --resume-anyway" if self.config.resume_anyway else " --resume"
        return f"{self.command.program} --run-dir {shlex.quote(str(self.run.path))}{how}"


@dataclass(frozen=True)
class TrainResult:
    """Folder and outcome of a run."""

    run_dir: Path
    """Its folder: metrics.jsonl, checkpoints, report.html, and the model."""
    stopped: signal.Signals | None
    """The signal that stopped it before its last step; None where it ended by itself."""

    @property
    def model(self) -> Path:
        """The Hugging Face folder of the trained weights."""
        return RunDir(self.run_dir).model

    @property
    def records(self) -> list[Record]:
        """One mapping a step, from before the first."""
        return RunDir(self.run_dir).read_metrics()


def as_json(config: TrainConfig) -> dict[str, Any]:
    """Returns the config as it is written into the run's folder."""
    values = to_json(replace(config, processes=Processes()))  # how they were started is no part
    return {key: value for key, value in values.items() if key not in OF_THIS_CALL}


def counting(session: Session) -> dict[str, Judge]:
    """Returns the rewards that count outcomes, by what they judge."""
    judges = {
        "completions": session.prepared.judge,
        "evaluation answers": session.prepared.judge_heldout,
    }
    return {
        what if len(judge.pool.rewards) == 1 else f"{what}, {reward.name},": reward.function
        for what, judge in judges.items()
        for reward in judge.pool.rewards
        if isinstance(reward.function, Judge)
    }


def outcomes(session: Session) -> dict[str, RewardCounts]:
    """Returns counts of answers since the run began, by what they are answers to."""
    return {name: reward.counts for name, reward in counting(session).items()}


@contextmanager
def not_counted(session: Session) -> Iterator[None]:
    """Leaves the counts as they are: an evaluation counts the same answers."""
    counts = outcomes(session)
    yield
    for name, reward in counting(session).items():
        reward.counts = counts[name]
