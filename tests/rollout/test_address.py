"""Servers' addresses, and the trainer's as they see it."""

import pytest

from ogrpo.rollout import address
from ogrpo.rollout.address import check_loopback, check_offer, check_url, server_root


@pytest.mark.parametrize(
    "url",
    ["http://host:8000", "https://host", "http://[::1]:80", "http://10.0.0.1:1/behind/a/proxy/"],
)
def test_an_address_is_taken(url):
    check_url(url, "rollout.url")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://me:SECRET@host:1", "has credentials"),
        ("http://me:SE?CRET@host", "has credentials"),
        ("me:SECRET@host", "has credentials"),
        ("http://host/?key=SECRET", "a query"),
        ("host:8000", "'host:8000' is no server URL; give it with its scheme: http://host:8000$"),
        ("[::1]", r"give it with its scheme: http://\[::1\]:8000$"),
        ("host:99999", "give one such as http://host:8000$"),
        ("ftp://host", "is no server URL"),
        ("http://10.0.0.256:8000", "is no server URL"),
        ("http://host:99999", "is no server URL"),
        ("http://host/\x1b[2J", r"'http://host/\\x1b\[2J' is no server URL"),
    ],
)
def test_an_address_with_a_secret_or_none_is_refused_without_showing_it(url, message):
    with pytest.raises(ValueError, match=rf"^rollout\.url.*{message}") as caught:
        check_url(url, "rollout.url")
    assert "CRET" not in str(caught.value)


@pytest.mark.parametrize("end", ["", "/", "/v1", "/v1/", "//"])
@pytest.mark.parametrize("root", ["http://host:8000", "http://[::1]:80", "https://host/behind/v12"])
def test_a_server_is_asked_below_the_address_that_a_client_of_v1_has(root, end):
    assert server_root(root + end) == root


@pytest.mark.parametrize("listen", ["0.0.0.0", "::", "[::]", "0", ""])
def test_every_interface_is_no_address_to_pull_from(listen):
    with pytest.raises(ValueError, match=r"^rollout\.listen is .*rollout\.advertise.* 127.0.0.1"):
        check_offer(listen, None, "rollout.", ["http://127.0.0.1:8000"])
    with pytest.raises(ValueError, match=r"^listen is .*give advertise.*such as 10\.0\.0\.5"):
        check_offer(listen, None, "")
    check_offer(listen, "trainer-0.lan", "rollout.")


def test_a_loopback_interface_is_refused_to_servers_elsewhere(monkeypatch):
    there = ("10.0.0.5", "10.0.0.9")
    monkeypatch.setattr(address, "route", {"http://gpu-1:8000": there}.get)
    with pytest.raises(ValueError, match=r"gpu-1:8000 is another .* rollout\.listen .* 10.0.0.5"):
        check_loopback("127.0.0.1", ["http://gpu-0:8000", "http://gpu-1:8000"], "rollout.listen")
