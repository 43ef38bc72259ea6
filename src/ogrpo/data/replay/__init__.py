"""Replay of judged whole groups: numpy and Arrow, no JAX. See docs/replay.md."""

from ogrpo.data.replay.buffer import BufferLimits, Receipt, ReplayBuffer
from ogrpo.data.replay.columns import Columns, Experience, Layout, pack
from ogrpo.data.replay.samplers import (
    Fifo,
    Mixed,
    Prioritised,
    Sampler,
    Stratified,
    TooFewGroups,
    advantage,
    equal,
    novelty,
    positives,
    product,
    recency,
    uniform,
)
from ogrpo.data.replay.segments import BrokenSegment, MisplacedSegment
from ogrpo.data.replay.table import Draw, Features, Table
