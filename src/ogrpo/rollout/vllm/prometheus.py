"""The few of a server's own metrics that say whether it keeps up."""

import asyncio
from collections.abc import Sequence

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


def parse(text: str) -> dict[str, float]:
    """The shown metrics of a Prometheus page, summed over their labels."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        name, _, value = line.rpartition(" ")
        short = SHOWN.get(name.split("{", 1)[0])
        if short is not None:
            found[short] = found.get(short, 0.0) + float(value)
    return found


async def server_metrics(apis: Sequence[ServerApi]) -> dict[str, float]:
    """Their sum over the servers that answer."""
    pages = await asyncio.gather(*(api.metrics() for api in apis), return_exceptions=True)
    total: dict[str, float] = {}
    for page in pages:
        if isinstance(page, str):
            for name, value in parse(page).items():
                total[name] = total.get(name, 0.0) + value
        elif not isinstance(page, RolloutError):
            raise page
    return total
