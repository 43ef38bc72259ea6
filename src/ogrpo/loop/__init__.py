"""Algorithm 1 with reuse: a step on one screen, what it reads and what it writes."""

from ogrpo.loop.batches import Packer
from ogrpo.loop.collect import make_collector, start
from ogrpo.loop.evaluate import heldout_record
from ogrpo.loop.parts import Parts, stream_seed
from ogrpo.loop.state import (
    PHASES,
    DivergedError,
    LoopState,
    check_frozen,
    first_arrays,
    resume,
    snapshot,
)
from ogrpo.loop.training import advance, train

__all__ = [
    "PHASES",
    "DivergedError",
    "LoopState",
    "Packer",
    "Parts",
    "advance",
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
