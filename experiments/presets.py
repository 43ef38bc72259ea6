"""Named starting points: each a function whose docstring says what it takes and what to expect."""

from collections.abc import Callable

from experiments.config import (
    Gsm8k,
)
from ogrpo.loop import Schedule


def v1_i1() -> Gsm8k:
    """On-policy GRPO: fresh weights on the server at every step, one update a batch."""
    return Gsm8k(schedule=Schedule(v=1, i=1))


def v10_i1() -> Gsm8k:
    """Off-policy GRPO: the server's weights are renewed every 10 steps."""
    return Gsm8k(schedule=Schedule(v=10, i=1))


def v1_i10() -> Gsm8k:
    """A fixed batch used for 10 updates."""
    return Gsm8k(schedule=Schedule(v=1, i=10))


DEFAULT = "v10-i1"
PRESETS: dict[str, Callable[[], Gsm8k]] = {
    "v1-i1": v1_i1,
    "v10-i1": v10_i1,
    "v1-i10": v1_i10,
}
