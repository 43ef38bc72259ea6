"""How the engine behaves towards its servers."""

import base64
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ogrpo.rollout.vllm.sync import InFlight


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
    api_key: str | None = field(default=None, repr=False)
    """As given to the servers with --api-key."""
    basic_auth: str | None = field(default=None, repr=False)
    """NAME:PASSWORD for a proxy in front of the servers that asks for basic authentication."""
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
    tolerance: float | None = None
    """Mean absolute probe difference in nats; default: 1e-3 for float32, 0.15 for bfloat16."""
    probe_count: int = 4
    probe_length: int = 16
    keep: int = 2
    """Releases that stay on the disk."""
    delta: bool = True
    """Whether to send only what changed, where that is less (transport "url")."""

    def __post_init__(self) -> None:
        _check_secret("api_key", self.api_key)
        _check_secret("basic_auth", self.basic_auth)
        if self.api_key and self.basic_auth:
            raise ValueError("api_key and basic_auth are both given; a request carries one of them")
        if self.basic_auth and ":" not in self.basic_auth:
            raise ValueError("basic_auth is no NAME:PASSWORD; give both with a colon between")
        if self.transport not in ("folder", "url"):
            raise ValueError(f"transport is {self.transport!r}; use 'folder' or 'url'")
        for name in ("timeout", "patience", "attempts", "per_server", "prompts_per_request"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}; give a number above 0")

    @property
    def headers(self) -> Mapping[str, str]:
        """What says to the servers who asks."""
        return authorization(self.api_key, self.basic_auth)


def authorization(api_key: str | None, basic_auth: str | None) -> Mapping[str, str]:
    """The header for a bearer's key, or for a name and a password."""
    if basic_auth:
        return {"Authorization": f"Basic {base64.b64encode(basic_auth.encode()).decode()}"}
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}


class Credentials(NamedTuple):
    """Who asks; the options of the same names."""

    api_key: str | None
    basic_auth: str | None


def credentials_of_environment() -> Credentials:
    """What OGRPO_API_KEY and OGRPO_BASIC_AUTH say."""
    return Credentials(os.environ.get("OGRPO_API_KEY"), os.environ.get("OGRPO_BASIC_AUTH"))


def _check_secret(name: str, value: str | None) -> None:
    """Refuses what no header can carry; the message of the HTTP library would show it."""
    if value is not None and not (value.isascii() and value.isprintable()):
        raise ValueError(
            f"{name} has characters that no header can carry, such as the end of a line: take them"
            f" out of {'OGRPO_API_KEY' if name == 'api_key' else 'OGRPO_BASIC_AUTH'}"
        )
