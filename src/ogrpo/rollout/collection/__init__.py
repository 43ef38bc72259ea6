"""Asynchronous collection: batches of groups are drawn while the trainer trains on earlier ones.

with Collector(engine, request_at, sampling, steps=range(240), limits=limits, retry_on=errors) as c:
    c.publish(params, 0)
    taken = c.take(0)
"""

from ogrpo.rollout.collection.board import CollectionError, Limits
from ogrpo.rollout.collection.collector import Collector
from ogrpo.rollout.collection.requests import Request, Taken

__all__ = ["CollectionError", "Collector", "Limits", "Request", "Taken"]
