"""A run's figures in TensorBoard or Weights & Biases (`--track NAME`).

Each is a library of its own (`pip install 'ogrpo[track]'` brings both), imported only where it is
asked for, and set up by its own environment variables: WANDB_PROJECT, WANDB_MODE and so on. The
record of a run stays metrics.jsonl: a tracker that fails while the run goes on is named once, and
costs nothing else.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from ogrpo.report.run_page import flat


class Tracker(NamedTuple):
    """An open run of a tracker."""

    log: Callable[[Mapping[str, float], int], object]
    """Takes the figures of a step, and the step."""
    finish: Callable[[], object]


def tensorboard(folder: Path, config: Mapping[str, Any]) -> Tracker:
    """Returns a writer of event files in `<run>/tensorboard`; `@` in a name becomes `_at_`."""
    from tensorboardX import SummaryWriter

    text = "\n\n".join(f"{name} = {value}" for name, value in config.items())
    writers: list[SummaryWriter] = []

    def log(figures: Mapping[str, float], step: int) -> None:
        if not writers:  # from this step on, what a resumed run has written before is passed over
            writers.append(SummaryWriter(str(folder / "tensorboard"), purge_step=step))
            writers[0].add_text("config", text)
        for name, value in figures.items():
            writers[0].add_scalar(name.replace("@", "_at_"), value, step)
        writers[0].flush()

    return Tracker(log, lambda: [writer.close() for writer in writers])


def wandb(folder: Path, config: Mapping[str, Any]) -> Tracker:
    """Returns a run of Weights & Biases, which a resumed run goes on with."""
    import wandb

    file = folder / "wandb" / "id"  # by which a resumed run is found again, wherever it lies now
    file.parent.mkdir(exist_ok=True)
    if not file.exists():
        file.write_text(uuid4().hex[:16])
    settings = wandb.Settings(silent=True)
    run = wandb.init(
        project=os.environ.get("WANDB_PROJECT", "ogrpo"),
        name=folder.resolve().name,
        resume="allow",
        config=dict(config),
        id=file.read_text(),
        dir=str(folder),
        settings=settings,
    )
    run.define_metric("*", step_metric="step")  # its own steps only grow, also after --resume-from
    return Tracker(lambda figures, step: run.log({**figures, "step": step}), run.finish)


TRACKERS: dict[str, Callable[[Path, Mapping[str, Any]], Tracker]] = {
    "tensorboard": tensorboard,
    "wandb": wandb,
}


@contextmanager
def tracking(
    names: Sequence[str], folder: Path, config: Mapping[str, Any], warn: Callable[[str], None]
) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Opens trackers; within the block, the function it gives takes each step's record.

    Args:
      names: of `TRACKERS`.
      warn: is told once of each tracker that fails while the run goes on.

    Raises:
      ValueError: there is no such tracker, its library is missing, or it does not start; with the
        name and the remedy. Trackers that were open by then are finished.
    """
    opened: dict[str, Tracker] = {}
    failed: set[str] = set()

    def attempt(name: str, what: str, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as error:  # whatever a tracker's library raises: metrics.jsonl is whole
            if name not in failed:
                warn(f"--track {name}: {what} failed ({error}); metrics.jsonl has every figure")
            failed.add(name)

    def log(record: Mapping[str, Any]) -> None:
        step = record["step"]
        figures = {
            key: float(value)
            for key, value in record.items()
            if isinstance(value, int | float) and key != "step"
        }
        for name, tracker in opened.items():
            attempt(name, f"step {step}", lambda t=tracker: t.log(figures, step))

    try:
        for name in names:
            opened[name] = _open(name, folder, dict(flat(config)))
        yield log
    finally:
        for name, tracker in opened.items():
            attempt(name, "its end", tracker.finish)


def _open(name: str, folder: Path, config: Mapping[str, Any]) -> Tracker:
    if name not in TRACKERS:
        raise ValueError(f"--track {name}: choose from {', '.join(TRACKERS)}")
    try:
        return TRACKERS[name](folder, config)
    except ImportError as error:
        raise ValueError(
            f"--track {name} needs {error.name}: pip install 'ogrpo[track]'"
        ) from error
    except Exception as error:  # whatever a tracker's library raises
        raise ValueError(
            f"--track {name} does not start ({error}): set it up by its own environment variables,"
            " or leave the option out; metrics.jsonl has every figure"
        ) from error
