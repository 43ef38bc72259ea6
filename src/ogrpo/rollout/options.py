"""Options of the vLLM client, the same for a run, for `ogrpo eval` and for `VllmEngine`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ogrpo.rollout.address import server_root
from ogrpo.system.values import Count, NonNegative, OptionalPositive, Positive

InFlight = Literal["wait", "abort", "keep"]
"""What a push of weights does to requests in flight: drain them, abort them, or go on with the new
weights (exact only where the server reports the version of each token)."""


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
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
