"""Sampling of completions: by the embedded sampler, or by external servers."""

from dataclasses import dataclass
from typing import Any, Literal

from ogrpo.rollout.address import check_offer, check_url
from ogrpo.rollout.options import InFlight, ServerOptions
from ogrpo.system.values import (
    INERT,
    Conditions,
    Count,
    Index,
    OptionalCount,
    OptionalPositive,
    PositiveShare,
    Share,
    Temperature,
    check_conditions,
)


@dataclass(frozen=True, kw_only=True)
class Rollout(ServerOptions):
    """Sampling of completions, by the embedded sampler or by servers (docs/vllm.md)."""

    group_size: Count = 8
    """G: completions of one prompt. One alone needs an advantage without siblings, such as
    --override.advantage leave_prompt_out."""
    temperature: Temperature = 1.0
    """Of the samples, and of all log-probs that are trained on."""
    top_k: Index = 0
    """Draw from so many of the likeliest tokens; 0 is all."""
    top_p: PositiveShare = 1.0
    """Then from the fewest likeliest with this share of what is left."""
    min_p: Share = 0.0
    """Before both, leave out tokens less than so many times as likely as the likeliest. Held-out
    answers are drawn from all tokens."""
    keep_sampling_mask: bool = False
    """With top-k, top-p or min-p: record which tokens could be drawn at each place (2 bytes each, 4
    in a vocabulary above 65,535) and take the policy over the same ones, without which ratios are
    biased (docs/replay.md)."""
    max_tokens: OptionalCount = None
    """Longest completion in tokens; a longer one is cut off. Default: as the task says, or room for
    its longest worked solution, or 256."""
    workers: Count = 1
    """Calls of the engine under way at a time. With one, the run does not depend on timing."""
    prompts_per_call: OptionalCount = None
    """Prompts in one call of the engine; default: the whole batch."""
    mismatch_limit: OptionalPositive = 0.3
    """Mean distance, in nats a token, of the sampler's log-probs from the trainer's on a batch that
    the trainer's own weights drew, beyond which the run ends; bfloat16 costs 0.05. None: goes on.
    """
    quantize: Literal["none", "int8"] = "none"
    """What the embedded sampler rounds its weights to: int8 per output channel makes it another
    policy than the trainer's, as a server of 8-bit weights is; `mismatch` says how far. Held-out
    answers are drawn with the trainer's own weights."""
    in_flight: InFlight = "wait"
    """What a push of weights does to requests in flight: let them finish first, cut them off and
    draw them again, or let them go on with the new weights (vLLM 0.32 and later)."""

    @property
    def truncation(self) -> dict[str, Any]:
        """Settings that leave tokens out before one is drawn; empty where all may be drawn."""
        values = {"min_p": self.min_p, "top_k": self.top_k, "top_p": self.top_p}
        return {name: value for name, value in values.items() if value != getattr(Rollout, name)}


SERVERS: Conditions = (
    (
        "transport wait timeout patience attempts per-server tolerance",
        lambda s: s.url,
        "give --{prefix}url",
    ),
    (
        "folder",
        lambda s: s.url and s.transport == "folder",
        "give --{prefix}url, with transport folder",
    ),
    (
        "listen advertise",
        lambda s: s.url and s.transport == "url",
        "give --{prefix}url and transport url",
    ),
)
"""Options of `ServerOptions`, when they act, and what to do otherwise."""


def check_servers(servers: ServerOptions, prefix: str) -> None:
    """Holds servers, whose options begin with `prefix`, to their conditions and addresses.

    Raises:
      ValueError: an option would change nothing, an address is none or is there twice, or no server
        could pull weights from this machine by the one that it would name.
    """
    for url in servers.url:
        check_url(url, f"{prefix}url")
    if twice := {url for url in servers.roots if servers.roots.count(url) > 1}:
        raise ValueError(f"{prefix}url names {' and '.join(sorted(twice))} twice: give it once")
    check_conditions(servers, SERVERS, clause=INERT, prefix=prefix)
    if servers.transport == "url":
        check_offer(servers.listen, servers.advertise, prefix, servers.roots)
