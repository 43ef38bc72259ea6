"""Stands before any server and spoils the requests that it is told to spoil.

with Proxy(server.url) as proxy:
    spoilt = proxy.spoil("/resume", undelivered)      # the next request of that path
    ...                                               # what is spoilt is asked at proxy.url
    assert spoilt.met.is_set()
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import httpx

LONGEST = 600.0


class Spoilt:
    """The next request of a path, and what came of it."""

    def __init__(self, path: str, fault: "Fault") -> None:
        self.path, self.fault, self.left = path, fault, True
        self.met = threading.Event()
        """It came, and was delivered where the fault does that."""
        self.released = threading.Event()
        """Lets go what is held."""


Deliver = Callable[[], httpx.Response]
Fault = Callable[[Deliver, Spoilt], httpx.Response | None]
"""`(what delivers the request and returns the answer, Spoilt) -> the answer`; None: there is none."""


def undelivered(_: Deliver, __: Spoilt) -> None:
    """The request is lost."""


def held(deliver: Deliver, spoilt: Spoilt) -> httpx.Response:
    """The request is carried out, the answer comes when it is let go."""
    answer = deliver()
    spoilt.met.set()
    spoilt.released.wait(LONGEST)
    return answer


class Proxy:
    """A proxy in front of the server at a URL."""

    def __init__(self, url: str) -> None:
        self.origin = url
        self._faults: list[Spoilt] = []
        self._lock = threading.Lock()
        self._serving = serving(self._respond)

    def spoil(self, path: str, fault: Fault) -> Spoilt:
        """Spoils the next request whose path ends so."""
        self._faults.append(Spoilt(path, fault))
        return self._faults[-1]

    def __enter__(self) -> "Proxy":
        self.url = self._serving.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        """Lets go what is held, and refuses other requests."""
        for spoilt in self._faults:
            spoilt.released.set()
        self._serving.__exit__(None, None, None)

    def _respond(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        headers = {k: v for k, v in handler.headers.items() if k.lower() != "connection"}
        url, name = f"{self.origin}{handler.path}", urlsplit(handler.path).path

        def deliver() -> httpx.Response:
            with httpx.Client(timeout=LONGEST, trust_env=False) as client:
                return client.request(handler.command, url, content=body, headers=headers)

        with self._lock:
            due = next((x for x in self._faults if x.left and name.endswith(x.path)), None)
            if due is not None:
                due.left = False
        if due is None:
            reply = deliver()
        else:
            reply = due.fault(deliver, due)
            due.met.set()
        if reply is not None:
            handler.send_response(reply.status_code)
            handler.send_header("Content-Type", reply.headers.get("Content-Type", ""))
            handler.end_headers()
            handler.wfile.write(reply.content)


@contextmanager
def running(server: ThreadingHTTPServer) -> Iterator[ThreadingHTTPServer]:
    """Has a server answer in a thread, until the end."""
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def serving(respond: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[str]:
    """A server whose answer is `respond(handler)`; its URL."""

    class Stub(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            respond(self)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        request_queue_size = 256

        def handle_error(self, *_: object) -> None:
            """A client that goes away is what is tested."""

    with running(Server(("127.0.0.1", 0), Stub)) as server:
        yield f"http://127.0.0.1:{server.server_port}"
