"""Algorithm 1 with reuse: a step on one screen, what it reads and what it writes."""

from ogrpo.loop.batches import Packer as Packer
from ogrpo.loop.collect import make_collector as make_collector
from ogrpo.loop.collect import start as start
from ogrpo.loop.evaluate import heldout_record as heldout_record
from ogrpo.loop.parts import Parts as Parts
from ogrpo.loop.parts import stream_seed as stream_seed
from ogrpo.loop.state import PHASES as PHASES
from ogrpo.loop.state import DivergedError as DivergedError
from ogrpo.loop.state import LoopState as LoopState
from ogrpo.loop.state import check_frozen as check_frozen
from ogrpo.loop.state import first_arrays as first_arrays
from ogrpo.loop.state import resume as resume
from ogrpo.loop.state import snapshot as snapshot
from ogrpo.loop.training import advance as advance
from ogrpo.loop.training import train as train
