"""Sampling of completions: by the embedded sampler, or by external servers."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ogrpo.config.values import (
    INERT,
    Count,
    Index,
    NonNegative,
    OptionalCount,
    OptionalPositive,
    Positive,
    PositiveShare,
    Share,
    Table,
    check_conditions,
)
from ogrpo.rollout.address import check_offer, check_url, server_root


@dataclass(frozen=True, kw_only=True)
class Servers:
    """External vLLM servers in place of the embedded sampler (docs/vllm.md)."""

    url: tuple[str, ...] = ()
    """Their addresses, such as http://host:8000. Credentials are not part of one: OGRPO_API_KEY and
    OGRPO_BASIC_AUTH in the environment."""
    transport: Literal["folder", "url"] = "folder"
    """How weights reach the servers: a folder that they see, or pulled from here by URL."""
    folder: Path | None = None
    """With transport folder: where weights are put; default: a temporary one."""
    listen: str = "127.0.0.1"
    """With transport url: the interface on which weights are offered; 0.0.0.0 is all of them."""
    advertise: str | None = None
    """With transport url: this machine's name or address as the servers see it; default: `listen`.
    """
    wait: NonNegative = 600.0
    """Seconds to wait at the start for the servers; how to start them is shown meanwhile."""
    timeout: Positive = 300.0
    """Seconds until a request without a whole answer is given to another server: more than the
    longest completions take."""
    patience: Positive = 120.0
    """Seconds without any answer of a server after which the run ends, with what each said last."""
    attempts: Count = 6
    """Unusable answers to one request after which the run ends."""
    per_server: Count = 32
    """Requests in flight at one server at most; each asks for the completions of one prompt."""
    tolerance: OptionalPositive = None
    """Mean difference of log-probs, in nats a token, up to which a server has proven that it serves
    the weights that were pushed; default: by the coarser dtype of the trainer's and
    the server's, 1e-3 for float32, 0.15 for bfloat16."""

    @property
    def roots(self) -> tuple[str, ...]:
        """The addresses below which the servers have /health and /v1."""
        return tuple(map(server_root, self.url))


@dataclass(frozen=True, kw_only=True)
class Rollout(Servers):
    """Sampling of completions, by the embedded sampler or by servers (docs/vllm.md)."""

    group_size: Count = 8
    """G: completions of one prompt. One alone needs an advantage without siblings, such as
    --override.advantage leave_prompt_out."""
    temperature: Positive = 1.0
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
    in_flight: Literal["wait", "abort", "keep"] = "wait"
    """What a push of weights does to requests in flight: let them finish first, cut them off and
    draw them again, or let them go on with the new weights (vLLM 0.32 and later)."""

    @property
    def truncation(self) -> dict[str, Any]:
        """Settings that leave tokens out before one is drawn; empty where all may be drawn."""
        values = {"min_p": self.min_p, "top_k": self.top_k, "top_p": self.top_p}
        return {name: value for name, value in values.items() if value != getattr(Rollout, name)}


SERVERS: Table = (
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
"""Options of `Servers`, when they act, and what to do otherwise."""


def check_servers(servers: Servers, prefix: str) -> None:
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
