"""Servers' addresses, and who says who asks."""

import base64
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from ogrpo.rollout.address import check_url
from ogrpo.rollout.vllm import Expected, Options, RolloutError, connect
from ogrpo.rollout.vllm.options import credentials_of_environment
from ogrpo.trainer.servers import answers


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
        ("http://SECRET@host", "has credentials"),
        ("http://me:SE?CRET@host", "has credentials"),
        ("http://me:SE/CRET@host", "has credentials"),
        ("me:SECRET@host", "has credentials"),
        ("http://host/?key=SECRET", "a query"),
        ("http://host/#SECRET", "a fragment"),
        ("host:8000", "'host:8000' is no server URL"),
        ("ftp://host", "is no server URL"),
        ("http://", "is no server URL"),
        ("http://[", "is no server URL"),
        ("http://host:99999", "is no server URL"),
        ("http://ho st", "is no server URL"),
        ("http://host/\x1b[2J", r"'http://host/\\x1b\[2J' is no server URL"),
    ],
)
def test_an_address_with_a_secret_or_none_is_refused_without_showing_it(url, message):
    with pytest.raises(ValueError, match=rf"^rollout\.url.*{message}") as caught:
        check_url(url, "rollout.url")
    assert "CRET" not in str(caught.value)


@pytest.fixture
def seen():
    """What a server that lets nobody in was told, by its address."""
    found = []

    class Closed(BaseHTTPRequestHandler):
        def do_GET(self):
            found.append(self.headers["Authorization"])
            body = b'{"error": {"message": "\\u001b[2Jgo away"}}'
            self.send_response(200 if found[-1] == found[0] and len(found) > 1 else 401)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Closed)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield found, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize(
    ("name", "value", "header"),
    [
        ("OGRPO_API_KEY", "SECRET", "Bearer SECRET"),
        ("OGRPO_BASIC_AUTH", "me:SECRET", f"Basic {base64.b64encode(b'me:SECRET').decode()}"),
    ],
)
def test_the_environment_says_who_asks(seen, monkeypatch, name, value, header):
    found, url = seen
    monkeypatch.setenv(name, value)
    with pytest.raises(RolloutError, match=r"does not let us in \(401\).*OGRPO_API_KEY") as caught:
        answers(url)
    options = Options(**credentials_of_environment()._asdict())
    expected = Expected(vocab_size=8, eos_id=0, max_length=8, texts=[])
    with pytest.raises(Exception, match=r".") as refused:
        connect([url], expected=expected, tensors_fn=dict, score_fn=lambda *_: [], options=options)
    assert found
    assert set(found) == {header}
    for text in (str(caught.value), str(refused.value), repr(options)):
        assert "SECRET" not in text
        assert "\x1b" not in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"api_key": "SECRET\n"}, "OGRPO_API_KEY"),
        ({"basic_auth": "me:SECRET\x00"}, "OGRPO_BASIC_AUTH"),
        ({"basic_auth": "SECRET"}, "no NAME:PASSWORD"),
        ({"api_key": "SECRET", "basic_auth": "me:SECRET"}, "are both given"),
    ],
)
def test_a_secret_that_no_header_carries_is_refused_without_showing_it(options, message):
    with pytest.raises(ValueError, match=message) as caught:
        Options(**options)
    assert "SECRET" not in str(caught.value)
