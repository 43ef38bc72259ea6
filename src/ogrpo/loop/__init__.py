"""The training loop: the only package that imports all the others."""

from ogrpo.loop.batches import Packer
from ogrpo.loop.collect import judge
from ogrpo.loop.control import Limits
from ogrpo.loop.evaluate import Evaluation
from ogrpo.loop.run import advance, make_collector, train
from ogrpo.loop.schedule import Schedule
from ogrpo.loop.state import (
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
