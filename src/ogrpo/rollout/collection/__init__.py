"""Asynchronous collection: groups are drawn and rewarded while the trainer trains on earlier ones.

with Collector(engine, request_at, sampling, reward_fn, steps=range(240), limits=..., ...) as c:
    c.publish(params, 0)
    taken = c.take(0)
"""

from ogrpo.rollout.collection.collector import Collector as Collector
from ogrpo.rollout.collection.request_queue import CollectionError as CollectionError
from ogrpo.rollout.collection.request_queue import CollectionLimits as CollectionLimits
from ogrpo.rollout.collection.request_queue import GroupRewardFn as GroupRewardFn
from ogrpo.rollout.collection.request_queue import Request as Request
from ogrpo.rollout.collection.request_queue import Rewarded as Rewarded
from ogrpo.rollout.collection.request_queue import RewardedBatch as RewardedBatch
