"""Addresses of servers, without credentials: these would be written into all that a run leaves."""

import re
from urllib.parse import urlsplit

ELSEWHERE = (
    "put credentials into the environment: OGRPO_API_KEY for the servers' --api-key,"
    " OGRPO_BASIC_AUTH=NAME:PASSWORD for a proxy in front of them"
)


def check_url(url: str, option: str) -> None:
    """Refuses what is no server's address, and what would put a secret into files and messages.

    Raises:
        ValueError: with the option's name, and without the secret.
    """
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        good = False
    if re.search(r"[@?#]", url):
        raise ValueError(
            f"{option} has credentials, a query or a fragment in it: give the address alone, such"
            f" as http://host:8000, and {ELSEWHERE}"
        )
    if not good or not url.isprintable() or " " in url:
        raise ValueError(
            f"{option}: {url!r:.80} is no server URL; give one such as http://host:8000"
        )
