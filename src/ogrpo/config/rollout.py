"""How completions are drawn: the part of `config` about sampling and its external servers.

Values are checked where they are declared, as there.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from ogrpo.config.update import dashed, only_with, require
from ogrpo.rollout.address import check_offer, check_url, server_root


@dataclass(frozen=True)
class Servers:
    """External vLLM servers in place of the embedded sampler (docs/vllm.md)."""

    prefix: ClassVar[str] = "servers"
    url: tuple[str, ...] = ()
    """Their addresses, such as http://host:8000. Credentials are not part of one: OGRPO_API_KEY and
    OGRPO_BASIC_AUTH in the environment."""
    transport: Literal["folder", "url", "nccl"] = "folder"
    """How weights reach the servers: a folder that they see, pulled from here by URL, or broadcast
    from GPU to GPU."""
    folder: Path | None = None
    """With transport folder: where weights are put; default: a temporary one."""
    listen: str = "127.0.0.1"
    """With transport url: the interface on which weights are offered; 0.0.0.0 is all of them."""
    advertise: str | None = None
    """With transport url: this machine's name or address as the servers see it; default: `listen`.
    """
    wait: float = 600.0
    """Seconds to wait at the start for the servers; how to start them is shown meanwhile."""
    timeout: float = 300.0
    """Seconds until a request without a whole answer is given to another server: more than the
    longest completions take."""
    patience: float = 120.0
    """Seconds without any answer of a server until the run ends, with what each said last."""
    attempts: int = 6
    """Answers to one request that cannot be used until the run ends."""
    per_server: int = 32
    """Requests in flight at one server at most; each asks for the completions of one prompt."""
    tolerance: float | None = None
    """Mean difference of log-probs, in nats a token, up to which a server has proven that it serves
    the weights that were pushed; default: 1e-3 for float32, 0.15 for bfloat16."""

    def __post_init__(self) -> None:
        for url in self.url:
            check_url(url, f"{self.prefix}.url")
        twice = {url for url in self.roots if self.roots.count(url) > 1}
        require(
            not twice, f"{self.prefix}.url names {' and '.join(sorted(twice))} twice: give it once"
        )
        require(self.wait >= 0, f"{self.prefix}.wait is {self.wait}: give at least 0")
        for name in ("timeout", "patience", "attempts", "per_server", "tolerance"):
            value = getattr(self, name)
            require(
                value is None or value > 0,
                f"{self.prefix}.{dashed(name)} is {value}: give a number above 0",
            )
        self._check_what_acts()
        if self.transport == "url":
            check_offer(self.listen, self.advertise, f"{self.prefix}.", self.roots)

    def _check_what_acts(self) -> None:
        given = f"give --{self.prefix}.url"
        always = "transport wait timeout patience attempts per_server tolerance"
        only_with(self, self.prefix, always, bool(self.url), given)
        folder = bool(self.url) and self.transport == "folder"
        only_with(self, self.prefix, "folder", folder, f"{given}, with transport folder")
        pulled = bool(self.url) and self.transport == "url"
        only_with(self, self.prefix, "listen advertise", pulled, f"{given} and transport url")

    @property
    def roots(self) -> tuple[str, ...]:
        """The addresses below which the servers have /health and /v1."""
        return tuple(map(server_root, self.url))


@dataclass(frozen=True)
class Rollout(Servers):
    """How completions are drawn, by the embedded sampler or by servers (docs/vllm.md)."""

    prefix: ClassVar[str] = "rollout"
    group_size: int = 8
    """G: completions of one prompt. One alone needs an advantage without siblings, such as
    --override.advantage leave_prompt_out."""
    temperature: float = 1.0
    max_tokens: int | None = None
    """Longest completion in tokens; a longer one is cut off. Default: as the task says, or room for
    its longest worked solution, or 256."""
    workers: int = 1
    """Calls of the engine under way at a time. With one, the run does not depend on timing."""
    prompts_per_call: int | None = None
    """Prompts in one call of the engine; default: the whole batch."""
    mismatch_limit: float | None = 0.3
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
    push: Literal["merged", "adapters"] = "merged"
    """With --lora.rank: what a push moves, the whole weights with the adapters merged, or, to
    servers of `ogrpo-serve --lora-rank`, the adapters alone, which no request waits for."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.group_size >= 1,
            f"rollout.group-size is {self.group_size}: give at least 1",
        )
        require(
            self.temperature > 0,
            f"rollout.temperature is {self.temperature}: sampling needs a temperature above 0",
        )
        longest = self.max_tokens
        require(longest is None or longest > 0, f"rollout.max-tokens is {longest}: give at least 1")
        require(self.workers > 0, f"rollout.workers is {self.workers}: give at least 1")
        few = self.prompts_per_call
        require(few is None or few > 0, f"rollout.prompts-per-call is {few}: give at least 1")
        most = self.mismatch_limit
        require(
            most is None or most > 0,
            f"rollout.mismatch-limit is {most}: give a number above 0, or None for no limit",
        )
        remedy = "servers have weights of their own kind (ogrpo-serve DIR -- --quantization ...)"
        only_with(self, "rollout", "quantize", not self.url, remedy)
        several = bool(self.url) and self.workers > 1
        remedy = "give --rollout.url and --rollout.workers 2 or more"
        only_with(self, "rollout", "in_flight", several, remedy)
        remedy = "a push of adapters leaves what is in flight as it is, push merged"
        only_with(self, "rollout", "in_flight", self.push == "merged", remedy)
        only_with(self, "rollout", "push", bool(self.url), "give --rollout.url")
        require(
            self.push == "merged" or self.transport != "nccl",
            "rollout.push is adapters, and rollout.transport nccl moves whole weights alone: use "
            "folder or url",
        )
