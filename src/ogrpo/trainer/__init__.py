"""Training: what a run is asked for, its parts, its loop, and what it leaves behind."""

from ogrpo.trainer.batches import Packer
from ogrpo.trainer.control import ReuseLimits
from ogrpo.trainer.evaluate import HeldoutScores
from ogrpo.trainer.loop import advance, make_collector, train
from ogrpo.trainer.schedule import Schedule
from ogrpo.trainer.state import (
    PHASES,
    Costs,
    Ids,
    LoopState,
    Parts,
    Prompts,
    array_shapes,
    check_frozen,
    first_arrays,
    resume,
    snapshot,
    start,
    stream_seed,
)

__all__ = [
    "PHASES",
    "Costs",
    "HeldoutScores",
    "Ids",
    "LoopState",
    "Packer",
    "Parts",
    "Prompts",
    "ReuseLimits",
    "Schedule",
    "advance",
    "array_shapes",
    "check_frozen",
    "first_arrays",
    "make_collector",
    "resume",
    "snapshot",
    "start",
    "stream_seed",
    "train",
]
