"""Asynchronous collection: groups are drawn and rewarded while the trainer trains on earlier ones.

with Collector(engine, request_at, sampling, reward_fn, steps=range(240), limits=..., ...) as c:
    c.publish(params, 0)
    taken = c.take(0)
"""

from ogrpo.rollout.collection.collector import Collector
from ogrpo.rollout.collection.request_queue import CollectionError, CollectionLimits
from ogrpo.rollout.collection.requests import Request, Rewarded, RewardFn, Taken

__all__ = [
    "CollectionError",
    "CollectionLimits",
    "Collector",
    "Request",
    "RewardFn",
    "Rewarded",
    "Taken",
]
