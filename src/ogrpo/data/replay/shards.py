"""One buffer per process: who keeps what, how many each draws, and their statistics together.

A shard is an ordinary `ReplayBuffer` in a folder of its own. Where every process sees all groups,
`Shard.keeps` parts them by prompt, so that the groups of a prompt stay together; where each process
collects its own, it inserts what it collected. Every shard has to hear of the trainer's version by
`expire`: one that has collected nothing new would otherwise think its groups fresh.

Shards that each draw `count * share` groups with `share` their part of the total mass draw like one
buffer: `allot` gives those numbers, the same on every process that knows all masses and the seed.
With one number for all, as training in lockstep needs, a group's chance is that of one buffer times
(mean mass / mass of its shard): exact where the masses are equal, as they are for uniform
draws from shards of equal size.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ogrpo.data.replay.columns import Int64Array


@dataclass(frozen=True)
class Shard:
    """Shard `index` of `count`."""

    index: int
    count: int

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise ValueError(
                f"shard {self.index} of {self.count}; give an index from 0 to count - 1."
            )

    def keeps(self, problem: int) -> bool:
        """Tell whether the groups of this prompt belong here."""
        return problem % self.count == self.index

    def folder(self, root: Path) -> Path:
        """Return this shard's folder; readers that know Hive partitions see a column `shard`."""
        return root / f"shard={self.index}"


def allot(count: int, masses: Sequence[float], *, seed: int) -> Int64Array:
    """Part `count` independent draws among shards: multinomial in their masses, int64 `[shards]`.

    Drawing that many with replacement from each shard is drawing `count` with replacement from all
    of them.
    """
    total = float(np.sum(masses))
    if not np.isfinite(total) or total <= 0 or min(masses) < 0:
        raise ValueError(f"masses are {list(masses)}; give values >= 0, not all 0.")
    return np.random.default_rng(seed).multinomial(count, np.asarray(masses) / total)


def merge_statistics(shards: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the statistics of one buffer that holds what the shards hold.

    Names that end in `/mean` are averaged over groups, those in `/max` take the largest, all others
    are counts and are added.
    """
    names = dict.fromkeys(name for shard in shards for name in shard)
    return {name: _merged(name, shards) for name in names}


def _merged(name: str, shards: Sequence[Mapping[str, float]]) -> float:
    values = [shard.get(name, 0.0) for shard in shards]
    if name.endswith("/max"):
        return max(values)
    if not name.endswith("/mean"):
        return sum(values)
    groups = [shard["groups"] for shard in shards]
    return float(np.dot(values, groups)) / max(sum(groups), 1.0)
