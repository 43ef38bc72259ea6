"""The few of a server's own metrics that say whether it keeps up."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from ogrpo.rollout.vllm.api import ServerApi
from ogrpo.rollout.vllm.errors import RolloutError

SHOWN = {
    "vllm:num_requests_running": "server/running",
    "vllm:num_requests_waiting": "server/waiting",
    "vllm:generation_tokens_total": "server/generated_tokens",
    "vllm:prefix_cache_hits_total": "server/prefix_cache_hits",
    "vllm:kv_cache_usage_perc": "server/kv_cache_usage",
    "vllm:num_preemptions_total": "server/preemptions",
}
SHARES = {"server/kv_cache_usage"}
"""What is not added up over servers: the fullest counts."""
GAUGES = {"server/running", "server/waiting", "server/kv_cache_usage"}
"""What comes and goes: between two batches all are 0, so that the peak is what tells."""


def parse(text: str) -> dict[str, float]:
    """The shown metrics of a Prometheus page, over all their labels."""
    lines = (line.rpartition(" ") for line in text.splitlines())
    named = ((SHOWN.get(name.split("{", 1)[0]), value) for name, _, value in lines)
    return _together({short: float(value)} for short, value in named if short is not None)


def _together(several: Iterable[Mapping[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for page in several:
        for name, value in page.items():
            before = total.get(name, 0.0)
            total[name] = max(before, value) if name in SHARES else before + value
    return total


def peaks(before: Mapping[str, float], now: Mapping[str, float]) -> dict[str, float]:
    """The larger value of each gauge."""
    return {
        name: max(before.get(name, 0.0), now.get(name, 0.0))
        for name in GAUGES & (before.keys() | now.keys())
    }


async def server_metrics(apis: Sequence[ServerApi]) -> dict[str, float]:
    """Those of the servers that answer, together."""
    pages = await asyncio.gather(*(api.metrics() for api in apis), return_exceptions=True)
    for page in pages:
        if isinstance(page, BaseException) and not isinstance(page, RolloutError):
            raise page
    return _together(parse(page) for page in pages if isinstance(page, str))
