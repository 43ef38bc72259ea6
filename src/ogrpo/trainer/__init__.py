"""The training loop: the only package that imports all the others."""

from ogrpo.trainer.batches import Packer
from ogrpo.trainer.collect import judge
from ogrpo.trainer.control import Limits
from ogrpo.trainer.evaluate import Evaluation
from ogrpo.trainer.run import advance, make_collector, train
from ogrpo.trainer.schedule import Schedule
from ogrpo.trainer.state import (
    PHASES,
    Costs,
    Ids,
    LoopState,
    Parts,
    Split,
    Task,
    array_shapes,
    first_arrays,
    resume,
    snapshot,
    start,
    stream_seed,
)

__all__ = [
    "PHASES",
    "Costs",
    "Evaluation",
    "Ids",
    "Limits",
    "LoopState",
    "Packer",
    "Parts",
    "Schedule",
    "Split",
    "Task",
    "advance",
    "array_shapes",
    "first_arrays",
    "judge",
    "make_collector",
    "resume",
    "snapshot",
    "start",
    "stream_seed",
    "train",
]
