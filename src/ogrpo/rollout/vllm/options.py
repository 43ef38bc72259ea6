"""Options of the engine over servers."""

import base64
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from ogrpo.rollout.address import check_offer

InFlight = Literal["wait", "abort", "keep"]
CHOICES = {
    "transport": ("folder", "url"),
    "in_flight": get_args(InFlight),
}
POSITIVE = ("timeout", "patience", "attempts", "per_server", "tolerance")


@dataclass(frozen=True)
class Options:
    """Options of the engine; the defaults suit servers on one machine or network."""

    folder: Path | None = None
    """Where releases are written, which servers see at the same path; default: a temporary one."""
    transport: str = "folder"
    """How weights travel: "folder" (shared filesystem) or "url" (pulled from the trainer)."""
    listen: str = "127.0.0.1"
    """With "url", the interface on which releases are offered; 0.0.0.0 is all of them."""
    advertise: str | None = None
    """With "url", the trainer's host name or address as servers see it; default: `listen`."""
    api_key: str | None = field(default=None, repr=False)
    """The --api-key that the servers were started with."""
    basic_auth: str | None = field(default=None, repr=False)
    """NAME:PASSWORD for a proxy in front of the servers that asks for basic authentication."""
    in_flight: InFlight = "wait"
    """What a push does to requests in flight: drain them, abort them, or go on with new weights
    (exact only where the server reports the version of each token)."""
    timeout: float = 300.0
    """Seconds until a request without a whole answer is given to another server."""
    patience: float = 120.0
    """Seconds without any answer of a server until the run gives up."""
    start_patience: float | None = None
    """The same at the start, from a server's first failure; default: `patience`."""
    attempts: int = 6
    """Times that one request is tried where it is answered, and the answer cannot be used."""
    per_server: int = 32
    """Requests in flight at one server at most; each asks for a group of every prompt in it."""
    tolerance: float | None = None
    """Mean absolute probe difference in nats; default: 1e-3 for float32, 0.15 for bfloat16."""

    def __post_init__(self) -> None:
        for name, variable in (("api_key", "OGRPO_API_KEY"), ("basic_auth", "OGRPO_BASIC_AUTH")):
            secret = getattr(self, name)  # the message of the HTTP library would show it
            if secret is not None and not (secret.isascii() and secret.isprintable()):
                raise ValueError(
                    f"{name} has characters that no header can carry, such as the end of a line:"
                    f" take them out of {variable}"
                )
        if self.api_key and self.basic_auth:
            raise ValueError("api_key and basic_auth are both set; a request carries one of them")
        if self.basic_auth and ":" not in self.basic_auth:
            raise ValueError("basic_auth is no NAME:PASSWORD; give both with a colon between")
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} is {getattr(self, name)!r}; use one of {choices}")
        if self.transport == "url":
            check_offer(self.listen, self.advertise, "")
        for name in POSITIVE:
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name} is {value}; give a number above 0")

    @property
    def headers(self) -> Mapping[str, str]:
        """Returns what says to the servers who asks."""
        if self.basic_auth:
            encoded = base64.b64encode(self.basic_auth.encode()).decode()
            return {"Authorization": f"Basic {encoded}"}
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}


def credentials_of_environment() -> dict[Literal["api_key", "basic_auth"], str | None]:
    """Returns the options that OGRPO_API_KEY and OGRPO_BASIC_AUTH set."""
    environ = os.environ
    return {"api_key": environ.get("OGRPO_API_KEY"), "basic_auth": environ.get("OGRPO_BASIC_AUTH")}
