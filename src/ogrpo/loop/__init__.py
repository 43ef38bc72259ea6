"""Algorithm 1 with reuse: a step on one screen, what it reads and what it writes."""

from ogrpo.loop.batches import Packer
from ogrpo.loop.evaluate import heldout_record
from ogrpo.loop.state import (
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
from ogrpo.loop.training import advance, make_collector, train

__all__ = [
    "PHASES",
    "Costs",
    "Ids",
    "LoopState",
    "Packer",
    "Parts",
    "Prompts",
    "advance",
    "array_shapes",
    "check_frozen",
    "first_arrays",
    "heldout_record",
    "make_collector",
    "resume",
    "snapshot",
    "start",
    "stream_seed",
    "train",
]
