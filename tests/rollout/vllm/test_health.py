"""What is waited for at the start of a run, and what is told at once."""

import socket
import threading
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from ogrpo.rollout.vllm import RolloutError
from ogrpo.rollout.vllm.health import ask_health


@contextmanager
def answering(answers, **headers):
    """A server that gives each path its status; its address."""

    class Fixed(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(answers.get(self.path, 404))
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Fixed)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_server_that_is_well_is_not_waited_for():
    with answering({"/health": 200}) as url:
        assert ask_health(url) is None


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_a_server_that_is_starting_is_waited_for(status):
    with answering({"/health": status}) as url:
        assert ask_health(url) == f"it answers {status}"


def test_a_server_that_is_not_there_is_waited_for():
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        port = listening.getsockname()[1]
    assert "refused" in ask_health(f"http://127.0.0.1:{port}")


def test_a_connection_that_ends_without_an_answer_is_waited_for():
    """So a container's port looks before the server in it listens."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:

        def hang_up():
            for _ in range(2):
                listening.accept()[0].close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        port = listening.getsockname()[1]
        assert ask_health(f"http://127.0.0.1:{port}")
        assert "TLS" not in ask_health(f"https://127.0.0.1:{port}")
        thread.join()


def test_a_path_below_a_healthy_server_is_told_with_the_address_that_is_right():
    with answering({"/health": 200}) as url:
        message = f"^{url}/v1/models/health answers 404: the server is at {url}: give that address$"
        with pytest.raises(RolloutError, match=message):
            ask_health(f"{url}/v1/models")


@pytest.mark.parametrize("status", [400, 404, 405])
def test_something_else_than_vllm_is_told(status):
    with (
        answering({"/health": status}) as url,
        pytest.raises(RolloutError, match=f"answers {status}: something else than vLLM"),
    ):
        ask_health(url)


def test_where_a_server_sends_on_to_is_told_without_what_is_secret_in_it():
    with (
        answering({"/health": 307}, Location="https://me:SECRET@gpu.lan/in?key=SECRET") as url,
        pytest.raises(RolloutError, match=r"sends on to https://gpu\.lan, .*give that") as caught,
    ):
        ask_health(url)
    assert "SECRET" not in str(caught.value)


def test_tls_where_there_is_none_is_told():
    with (
        answering({"/health": 200}) as url,
        pytest.raises(RolloutError, match=r"TLS fails .*: give http://"),
    ):
        ask_health(url.replace("http:", "https:"))


def test_a_name_that_is_not_known_is_told():
    with pytest.raises(
        RolloutError, match=r"the name nosuch\.invalid is not known here .*: correct"
    ):
        ask_health("http://nosuch.invalid:8000")
