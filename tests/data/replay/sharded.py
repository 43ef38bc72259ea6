"""What each process of the sharding test does; run as a program, it is one of them."""

import json
import sys
from functools import partial
from pathlib import Path

import numpy as np

from ogrpo.data.replay import BufferLimits, Prioritised, ReplayBuffer, Shard, allot, uniform
from tests.data.replay.make import LAYOUT, experience

GROUPS, COUNT, DRAWS = 13, 8, 400  # an odd number, so that the shards differ in size


def tilted(groups):
    return 1.0 + groups.problem % 5


SAMPLERS = {
    "uniform": partial(uniform, replace=True),
    "tilted": partial(Prioritised, weight=tilted, replace=True),
}


def masses(name):
    """The weight of each group, by its problem."""
    return [1.0 if name == "uniform" else 1.0 + problem % 5 for problem in range(GROUPS)]


def run(root: Path, shard: Shard) -> dict:
    """Insert this shard's groups and draw its part of each draw, per sampler."""
    everything = [experience(n, version=n % 4) for n in range(GROUPS)]
    mine = [one for one in everything if shard.keeps(one.problem)]
    buffer, drawn = None, {}
    for name, sampler in SAMPLERS.items():
        folder = shard.folder(root) if name == "uniform" else None
        buffer = ReplayBuffer(LAYOUT, BufferLimits(), sampler, folder=folder)
        buffer.insert(mine)
        buffer.flush()
        buffer.expire(6)  # the version is the trainer's, the same for every shard
        drawn[name] = draw(buffer, shard, masses(name))
    assert buffer is not None
    held = sorted({one.problem for one in mine})
    return {"held": held, "drawn": drawn, "statistics": buffer.statistics()}


def draw(buffer: ReplayBuffer, shard: Shard, weights: list[float]) -> list[int]:
    """Draw this shard's allotment many times; how often each problem came up."""
    of_each = [
        sum(w for problem, w in enumerate(weights) if Shard(n, shard.count).keeps(problem))
        for n in range(shard.count)
    ]
    assert buffer.statistics()["mass"] == of_each[shard.index]
    found = np.zeros(GROUPS, np.int64)
    for turn in range(DRAWS):
        count = int(allot(COUNT, of_each, seed=turn)[shard.index])
        if count:
            seed = 1000 * shard.count + 2 * turn + shard.index
            np.add.at(found, buffer.sample(count, seed=seed).problems, 1)
    return found.tolist()


if __name__ == "__main__":
    index = int(sys.argv[2])
    print(json.dumps(run(Path(sys.argv[1]), Shard(index, 2))))
