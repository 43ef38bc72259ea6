"""Addresses: of servers, without credentials, and of the trainer as servers see it."""

import ipaddress
import re
import socket
from collections.abc import Sequence
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

    def whole(url: str) -> bool:
        try:
            parts = urlsplit(url)
            host = (parts.hostname or "").encode("idna")
            if host.count(b".") == 3 and not host.strip(b".0123456789"):
                ipaddress.ip_address(host.decode())
            return bool(parts.scheme in ("http", "https") and host and parts.port != 0)
        except ValueError:  # of the port, of an IPv6 address, or of a name
            return False

    if re.search(r"[@?#]", url):
        raise ValueError(
            f"{option} has credentials, a query or a fragment in it: give the address alone, such"
            f" as http://host:8000, and {ELSEWHERE}"
        )
    if not (whole(url) and url.isprintable() and " " not in url):
        bare = _BARE.fullmatch(url)  # only the scheme may be missing
        meant = f"http://{bare[1]}{bare[2] or ':8000'}" if bare and not bare[1].isdecimal() else ""
        advice = f"it with its scheme: {meant}" if whole(meant) else "one such as http://host:8000"
        raise ValueError(f"{option}: {url!r:.80} is no server URL; give {advice}")


def server_root(url: str) -> str:
    """Returns the address below which a server has /health and /v1, from that of /v1, too."""
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def bare_host(host: str) -> str:
    """Returns a host without the brackets of an IPv6 address in a URL."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def url_of(host: str, port: int) -> str:
    """Returns the URL of a server that listens on a host and a port."""
    bare = bare_host(host)
    return f"http://[{bare}]:{port}" if ":" in bare else f"http://{bare}:{port}"


def check_offer(listen: str, advertise: str | None, prefix: str, urls: Sequence[str] = ()) -> None:
    """Refuses an interface and a name for it by which no server could pull weights.

    Raises:
      ValueError: with the option's name and a remedy.
    """

    def every(host: str) -> bool:
        """Returns whether a socket that is bound to this listens on every interface."""
        address = _address(host)
        return address.is_unspecified if address else bare_host(host).strip("0.") == ""

    if advertise is not None:
        bare = bare_host(advertise)
        if every(advertise) or not (_address(bare) if ":" in bare else _NAME.fullmatch(bare)):
            raise ValueError(
                f"{prefix}advertise is {advertise!r:.80}, which names no machine: give this one's"
                " name or address alone, as the servers see it, such as 10.0.0.5"
            )
    elif every(listen):
        way = next(filter(None, map(route, urls)), None)
        example = f", for {urls[0]} perhaps {way[0]}" if way else ", such as 10.0.0.5"
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
    address = _address(advertised)
    if not (address.is_loopback if address else advertised == "localhost"):
        return
    for url in urls:
        way = route(url)
        if way is not None and way[0] != way[1]:
            raise ValueError(
                f"{url} is another machine, which cannot pull weights from {advertised} here: give"
                f" {option} an address that it reaches, perhaps {way[0]}"
            )


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(bare_host(host))
    except ValueError:
        return None


def route(url: str) -> tuple[str, str] | None:
    """Returns this machine's and a server's address of a connection to it; None where not known.

    A connected datagram socket has chosen its route, and has sent nothing.
    """
    try:
        (family, *_, place), *_ = socket.getaddrinfo(
            urlsplit(url).hostname, 9, type=socket.SOCK_DGRAM
        )
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(place)
            return str(probe.getsockname()[0]), str(place[0])
    except (OSError, UnicodeError):
        return None
