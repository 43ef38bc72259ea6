"""Replay of judged whole groups: numpy and Arrow, no JAX. See docs/replay.md."""

from ogrpo.data.replay.buffer import BufferLimits, ReplayBuffer
from ogrpo.data.replay.columns import Columns, Experience, Layout, pack
from ogrpo.data.replay.samplers import (
    Sampler,
    TooFewGroups,
    advantage,
    equal,
    fifo,
    mixed,
    novelty,
    positives,
    recency,
    stratified,
    uniform,
    weighted,
)
from ogrpo.data.replay.segments import BrokenSegment, MisplacedSegment
from ogrpo.data.replay.table import Draw, Features, Table
