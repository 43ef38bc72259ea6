"""The trainer as a library calls it: a task, a model, an algorithm, and what else is to differ."""

import dataclasses
import difflib
import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from signal import Signals
from typing import Any

from rich.console import Console

from ogrpo.core.algorithms import Algorithm
from ogrpo.report.run_dir import RunDir
from ogrpo.tasks import Task
from ogrpo.trainer.config import TrainConfig
from ogrpo.trainer.run import run
from ogrpo.trainer.session import Invocation
from ogrpo.trainer.state import Record


@dataclass(frozen=True)
class TrainResult:
    """What a run left."""

    run_dir: Path
    """Its folder: metrics.jsonl, checkpoints, report.html, and the model."""
    stopped: Signals | None
    """The signal that stopped it before its last step; None where it ended by itself."""

    @property
    def model(self) -> Path:
        """The Hugging Face folder of the trained weights."""
        return RunDir(self.run_dir).model

    @property
    def records(self) -> list[Record]:
        """One mapping a step, from before the first."""
        return RunDir(self.run_dir).read_metrics()


class Trainer:
    """Trains a policy on a task with verifiable rewards.

    >>> def reward(prompts, completions, answer, **columns):
    ...     return [float(text.strip() == gold) for text, gold in zip(completions, answer)]
    >>> trainer = Trainer(
    ...     task=Task.from_iterable(
    ...         [{"prompt": f"{n} + 1 =", "answer": str(n + 1)} for n in range(100)],
    ...         rewards=[reward],
    ...     ),
    ...     schedule=Schedule(steps=100),
    ... )
    >>> trainer.config.schedule.steps
    100

    Args:
      task: what is trained on, or what `--task` takes: the name of a task or a file.
      model: a Hugging Face folder. Without it a small decoder is made here: its tokenizer is
        trained on the task's text, and it first imitates the task's worked solutions.
      algorithm: a name of `ogrpo.ALGORITHMS`, or an `Algorithm`.
      config: where the settings begin; default: `TrainConfig()`.
      console: where progress is shown; default: the terminal.
      options: fields of `TrainConfig` that differ: `schedule=Schedule(...)`, `seed=1`, ....

    Raises:
      ValueError: an option is unknown or two of them contradict each other; the message names it.
    """

    def __init__(
        self,
        *,
        task: Task | str | Path,
        model: str | Path | None = None,
        algorithm: str | Algorithm | None = None,
        config: TrainConfig | None = None,
        console: Console | None = None,
        **options: Any,
    ) -> None:
        base = TrainConfig() if config is None else config
        _check_options(options)
        changed = replace(base, **options)
        if model is not None:
            changed = replace(changed, model=replace(changed.model, path=Path(model)))
        if algorithm is not None:
            changed = replace(changed, algorithm=algorithm)
        self.task = task if isinstance(task, Task) else None
        name = task.name if isinstance(task, Task) else str(task)
        self.config = replace(changed, task=name)
        self._console = console or Console()

    def train(self) -> TrainResult:
        """Trains, evaluates, saves and reports; Ctrl-C stops it between two steps, state saved.

        Raises:
          ValueError: the task, the model or an option is wrong; nothing was computed yet.
          RolloutError: the samplers or all rewards failed; the state is saved.
        """
        whole = shlex.join([Path(sys.executable).name, *sys.argv])
        command = Invocation(whole, "the same, with run_dir and resume=True, as in")
        finished = run(self.config, self._console, command, self.task)
        return TrainResult(finished.run.path, finished.stopped)


def _check_options(options: dict[str, Any]) -> None:
    known = {field.name for field in dataclasses.fields(TrainConfig)} - {"task"}
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise ValueError(f"Trainer has no option {name}.{hint} Options: {sorted(known)}")
