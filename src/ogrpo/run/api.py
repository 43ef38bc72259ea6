"""The trainer as a library calls it: a task, a model, an algorithm, and what else is to differ."""

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from ogrpo.config import method
from ogrpo.config.train import Model, TrainConfig
from ogrpo.core.algorithms import Algorithm
from ogrpo.loop.parts import Record
from ogrpo.loop.state import LoopState
from ogrpo.models.known import check_model
from ogrpo.run.main import run_steps
from ogrpo.run.session import Callback, Invocation, TrainResult
from ogrpo.setup.presets import check_preset, make_preset
from ogrpo.system.values import changed
from ogrpo.tasks import Task


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
      model: a Hugging Face folder, a GGUF file, a name that `ogrpo model` knows, or `Model(...)`.
        Without it a small decoder is made here: its tokenizer is trained on the task's text, and
        it first imitates the task's worked solutions.
      algorithm: a name of `ogrpo.ALGORITHMS`, or an `Algorithm`.
      config: where the settings begin; default: `TrainConfig()`, or the `preset` that is named.
      callbacks: called after each step with the state (`LoopState`) and the step's record, the line
        of metrics.jsonl as a mapping; an error of theirs ends the run, saved.
      console: where progress is shown; default: the terminal.
      options: fields of `TrainConfig` that differ: `seed=1`, `preset="reuse"`, a whole table as
        `schedule=Schedule(steps=100)`, or some of its fields as `schedule={"steps": 100}`, ....

    Raises:
      ValueError: an option is unknown (the message says where it is), of the wrong kind, or two of
        them contradict each other; there is no such algorithm or model.
    """

    def __init__(
        self,
        *,
        task: Task | str | Path,
        model: str | Path | Model | None = None,
        algorithm: str | Algorithm | None = None,
        config: TrainConfig | None = None,
        callbacks: Sequence[Callback] = (),
        console: Console | None = None,
        **options: Any,
    ) -> None:
        self.task = task if isinstance(task, Task) else None
        options["task"] = task.name if isinstance(task, Task) else str(task)
        if model is not None:
            options["model"] = {"path": Path(model)} if isinstance(model, str | Path) else model
        if algorithm is not None:
            options["algorithm"] = algorithm
        if config is not None and options.get("preset", "none") != "none":
            raise ValueError("Trainer: preset and config are given: both are where settings begin")
        data = options.get("data")
        files = data.get("path") if isinstance(data, Mapping) else getattr(data, "path", None)
        config = config or make_preset(options.get("preset", "none"), on_files=files is not None)
        self.config = changed(config, options, "Trainer: ")
        check_preset(self.config if self.task is None else replace(self.config, task="own"))
        method.algorithm(self.config)
        if self.config.model.path is not None:
            check_model(self.config.model.path)
        self._callbacks = tuple(callbacks)
        self._console = console or Console()
        self._result: TrainResult | None = None

    def train(self) -> TrainResult:
        """Trains, evaluates, saves and reports; Ctrl-C stops it between two steps, state saved.

        Raises:
          ValueError: the task, the model or an option is wrong; nothing was computed yet.
          RolloutError: the samplers or all rewards failed; the state is saved.
        """
        for _ in self:
            pass
        return self.result

    def __iter__(self) -> Iterator[tuple[LoopState, Record]]:
        """Trains as `train` does, giving the state and the record after each step.

        >>> for state, record in trainer:  # doctest: +SKIP
        ...     print(record["step"], record["reward"])

        A loop that is left early leaves a run that is saved and can be resumed, without a report.
        """
        whole = shlex.join([Path(sys.executable).name, *sys.argv])
        program = "the same program, with run_dir and resume=True in its Trainer; as options:"
        command = Invocation(whole, program)
        self._result = yield from run_steps(
            self.config, self._console, command, self.task, self._callbacks
        )

    @property
    def result(self) -> TrainResult:
        """Folder and outcome of the run.

        Raises:
          RuntimeError: it has not come to its end.
        """
        if self._result is None:
            raise RuntimeError("the run has not ended: call train(), or iterate to the end")
        return self._result
