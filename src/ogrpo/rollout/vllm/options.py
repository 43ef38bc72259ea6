"""How the engine behaves towards its servers."""

from dataclasses import dataclass
from pathlib import Path

from ogrpo.rollout.vllm.sync import InFlight
from ogrpo.rollout.vllm.wire import UNTRUNCATED, Truncation


@dataclass(frozen=True)
class Options:
    """How the engine behaves; the defaults suit servers on one machine or network."""

    folder: Path | None = None
    """Where releases are written, which servers see at the same path; default: a temporary one."""
    transport: str = "folder"
    """How weights travel: "folder" (shared filesystem) or "url" (pulled from the trainer)."""
    listen: str = "127.0.0.1"
    """With "url", the interface on which releases are offered."""
    advertise: str | None = None
    """With "url", the trainer's host name as servers see it; default: `listen`."""
    api_key: str | None = None
    """As given to the servers with --api-key."""
    in_flight: InFlight = "wait"
    """What a push does to requests in flight: drain them, abort them, or go on with new weights
    (exact only where the server reports the version of each token)."""
    timeout: float = 300.0
    """Seconds until a request that got no answer is given to another server."""
    patience: float = 120.0
    """Seconds without any server until the run gives up."""
    attempts: int = 6
    """Times that one request is tried."""
    per_server: int = 32
    """Requests in flight at one server; each asks for a group of every prompt in it."""
    prompts_per_request: int = 4
    """Prompts in one request of /v1/completions."""
    truncation: Truncation = UNTRUNCATED
    allow_biased: bool = False
    """Accept truncated sampling although importance ratios are then biased."""
    tolerance: float | None = None
    """Mean absolute probe difference in nats; default: 1e-3 for float32, 0.15 for bfloat16."""
    probe_count: int = 4
    probe_length: int = 16
    keep: int = 2
    """Releases that stay on the disk."""
    stock_reload: bool = False
    """Use vLLM's own reload_weights even where the extension is there."""
    delta: bool = True
    """Whether to send only what changed, where that is less (transport "url")."""

    def __post_init__(self) -> None:
        if self.transport not in ("folder", "url"):
            raise ValueError(f"transport is {self.transport!r}; use 'folder' or 'url'")
        for name in ("timeout", "patience", "attempts", "per_server", "prompts_per_request"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}; give a number above 0")
