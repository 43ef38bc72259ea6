"""Addresses: of servers, without credentials, and of the trainer as servers see it."""

import ipaddress
import re
import socket
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

ELSEWHERE = (
    "put credentials into the environment: OGRPO_API_KEY for the servers' --api-key,"
    " OGRPO_BASIC_AUTH=NAME:PASSWORD for a proxy in front of them"
)
_BARE = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[\w.-]+)(:\d{1,5})?(/.*)?", re.ASCII)
_NAME = re.compile(r"[\w.-]+", re.ASCII)


def check_url(url: str, option: str) -> None:
    """Refuses what is no server's address, and what would put a secret into files and messages.

    Raises:
        ValueError: with the option's name, and without the secret.
    """
    if re.search(r"[@?#]", url):
        raise ValueError(
            f"{option} has credentials, a query or a fragment in it: give the address alone, such"
            f" as http://host:8000, and {ELSEWHERE}"
        )
    if not (_whole(url) and url.isprintable() and " " not in url):
        raise ValueError(f"{option}: {url!r:.80} is no server URL; give {_advice(url)}")


def _whole(url: str) -> bool:
    try:
        parts = urlsplit(url)
        named = (parts.hostname or "").encode("idna")
        return bool(parts.scheme in ("http", "https") and named and parts.port != 0)
    except ValueError:  # of the port, of an IPv6 address, or of a name
        return False


def _advice(url: str) -> str:
    """The address that was meant, where only its scheme is missing."""
    bare = _BARE.fullmatch(url)
    named = bare is not None and not bare[1].isdecimal()
    meant = f"http://{bare[1]}{bare[2] or ':8000'}" if bare and named else ""
    return f"it with its scheme: {meant}" if _whole(meant) else "one such as http://host:8000"


def server_root(url: str) -> str:
    """The address below which a server has /health and /v1, as clients of /v1 may give it, too."""
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def bare_host(host: str) -> str:
    """A host without the brackets of an IPv6 address in a URL."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def url_of(host: str, port: int) -> str:
    """The address of a server of ours."""
    bare = bare_host(host)
    return f"http://[{bare}]:{port}" if ":" in bare else f"http://{bare}:{port}"


def check_offer(listen: str, advertise: str | None, prefix: str, urls: Sequence[str] = ()) -> None:
    """Refuses an interface and a name for it by which no server could pull weights.

    Raises:
        ValueError: with the option's name and a remedy.
    """
    if advertise is not None and (not _is_host(advertise) or _is_wildcard(advertise)):
        raise ValueError(
            f"{prefix}advertise is {advertise!r:.80}, which names no machine: give this one's name"
            " or address alone, as the servers see it, such as 10.0.0.5"
        )
    if advertise is None and _is_wildcard(listen):
        way = next(filter(None, map(route, urls)), None)
        example = f", for {urls[0]} perhaps {way.local}" if way else ", such as 10.0.0.5"
        raise ValueError(
            f"{prefix}listen is {listen!r}, which is every interface, but servers pull from one"
            f" address: give {prefix}advertise, this machine's name or address as they see"
            f" it{example}"
        )


def check_loopback(advertised: str, urls: Sequence[str], option: str) -> None:
    """Refuses to offer weights on the loopback interface to servers on other machines.

    Raises:
        ValueError: with the first such server, and the address by which it may reach this machine.
    """
    if not _is_loopback(advertised):
        return
    for url in urls:
        way = route(url)
        if way is not None and way.local != way.peer:
            raise ValueError(
                f"{url} is another machine, which cannot pull weights from {advertised} here: give"
                f" {option} an address that it reaches, perhaps {way.local}"
            )


def _is_host(host: str) -> bool:
    bare = bare_host(host)
    return bool(_address(bare)) if ":" in bare else bool(_NAME.fullmatch(bare))


def _is_wildcard(host: str) -> bool:
    """Returns whether a socket that is bound to this listens on every interface."""
    address = _address(bare_host(host))
    return address.is_unspecified if address else bare_host(host).strip("0.") == ""


def _is_loopback(host: str) -> bool:
    address = _address(bare_host(host))
    return address.is_loopback if address else host == "localhost"


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


class Route(NamedTuple):
    """From this machine to a server."""

    local: str
    peer: str


def route(url: str) -> Route | None:
    """The addresses of both ends of a connection to a server; None where they are not known.

    A connected datagram socket has chosen its route, and has sent nothing.
    """
    try:
        (family, *_, place), *_ = socket.getaddrinfo(
            urlsplit(url).hostname, 9, type=socket.SOCK_DGRAM
        )
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(place)
            return Route(str(probe.getsockname()[0]), str(place[0]))
    except (OSError, UnicodeError):
        return None
