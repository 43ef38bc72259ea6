"""Stands before any server and spoils the requests that it is told to spoil.

    with Proxy(server.url) as proxy:
        spoilt = proxy.spoil("/resume", undelivered)      # the next request of that path
        ...                                               # what is spoilt is asked at proxy.url
        assert spoilt.met.is_set()

A fault is a function of an exchange: it delivers the request or does not, and answers or does not.
"""

import http.client
import json
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import urlsplit

LONGEST = 600.0
EVERY = 1 << 30


class Reply(NamedTuple):
    """What a server answered, read to its end."""

    status: int
    kind: str
    body: bytes

    @property
    def raw(self) -> bytes:
        head = (
            f"HTTP/1.1 {self.status} -\r\nContent-Type: {self.kind}\r\n"
            f"Content-Length: {len(self.body)}\r\n\r\n"
        )
        return head.encode() + self.body


class Cut(Exception):
    """The connection ends here."""


@dataclass
class Spoilt:
    """Which requests of a path are spoilt, and what came of them."""

    path: str
    fault: "Fault"
    left: int
    skipped: int
    met: threading.Event = field(default_factory=threading.Event)
    """A request was met, and delivered where the fault does that."""
    released: threading.Event = field(default_factory=threading.Event)
    """Set by a test to let go what is held."""
    whole: int = 0
    """Answers that were sent to their last byte."""


@dataclass
class Exchange:
    """One request and the connection that waits for its answer."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    origin: str
    connection: socket.socket
    spoilt: Any = None

    def deliver(self) -> Reply:
        """Asks the server."""
        server = http.client.HTTPConnection(self.origin, timeout=LONGEST)
        try:
            server.request(self.method, self.path, self.body, self.headers)
            reply = server.getresponse()
            kind = reply.headers.get("Content-Type", "application/json")
            return Reply(reply.status, kind, reply.read())
        except (OSError, http.client.HTTPException) as error:
            raise Cut from error
        finally:
            server.close()

    def send(self, raw: bytes) -> None:
        self.connection.sendall(raw)

    def answer(self, reply: Reply) -> None:
        self.send(reply.raw)


Fault = Callable[[Exchange], None]


# --- faults: each says by itself whether the request reaches the server ---------------------------


def undelivered(_: Exchange) -> None:
    """The request is lost."""
    raise Cut


def cut(exchange: Exchange) -> None:
    """The connection ends in the middle of the body."""
    reply = exchange.deliver()
    exchange.send(reply.raw[: -max(1, len(reply.body) // 2)])
    raise Cut


def held(exchange: Exchange) -> None:
    """The request is carried out, the answer comes when it is let go."""
    reply = exchange.deliver()
    exchange.spoilt.met.set()
    exchange.spoilt.released.wait(LONGEST)
    exchange.answer(reply)


def status(code: int) -> Fault:
    """Somebody in between answers with an error."""
    body = json.dumps({"error": {"message": "somebody is in between"}}).encode()
    return lambda exchange: exchange.answer(Reply(code, "application/json", body))


def rewritten(change: Callable[[bytes], bytes]) -> Fault:
    """The server gets another body."""

    def fault(exchange: Exchange) -> None:
        exchange.body = change(exchange.body)
        exchange.headers["Content-Length"] = str(len(exchange.body))
        exchange.answer(exchange.deliver())

    return fault


class Proxy:
    """In front of the server at a URL, at a URL of its own."""

    def __init__(self, url: str) -> None:
        self.origin = urlsplit(url).netloc
        self.seen: Counter[str] = Counter()
        self._faults: list[Spoilt] = []
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._server = _Listener(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def spoil(self, path: str, fault: Fault, *, after: int = 0, count: int = 1) -> Spoilt:
        """Spoils the next `count` requests whose path ends so, when `after` of them have passed."""
        spoilt = Spoilt(path, fault, count, after)
        with self._lock:
            self._faults.append(spoilt)
        return spoilt

    def close(self) -> None:
        """Lets go what is held, cuts all connections and refuses others."""
        for spoilt in self._faults:
            spoilt.released.set()
        self._server.shutdown()
        self._server.server_close()
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    def __enter__(self) -> "Proxy":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _holds(self, connection: socket.socket, here: bool) -> None:
        with self._lock:
            (self._connections.add if here else self._connections.discard)(connection)

    def _pass(self, exchange: Exchange) -> None:
        exchange.spoilt = self._fault(exchange.path)
        if exchange.spoilt is None:
            exchange.answer(exchange.deliver())
            return
        try:
            exchange.spoilt.fault(exchange)
        finally:
            exchange.spoilt.met.set()

    def _fault(self, path: str) -> Spoilt | None:
        name = urlsplit(path).path
        with self._lock:
            self.seen[name] += 1
            for spoilt in self._faults:
                if name.endswith(spoilt.path) and spoilt.left:
                    spoilt.skipped -= 1
                    if spoilt.skipped < 0:
                        spoilt.left -= 1
                        return spoilt
        return None


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, *_: object) -> None:
        """A client that goes away is what is tested."""


def _handler(proxy: Proxy) -> type[BaseHTTPRequestHandler]:
    class ProxyHandler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def setup(self) -> None:
            super().setup()
            proxy._holds(self.connection, True)

        def finish(self) -> None:
            proxy._holds(self.connection, False)
            super().finish()

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {k: v for k, v in self.headers.items() if k.lower() != "connection"}
            way = (str(self.command), self.path, headers, body)
            try:
                proxy._pass(Exchange(*way, proxy.origin, self.connection))
            except (Cut, OSError):
                self.close_connection = True
                with suppress(OSError):
                    self.connection.shutdown(socket.SHUT_RDWR)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            """Nothing."""

    return ProxyHandler


@contextmanager
def serving(respond: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[str]:
    """A server whose answer is `respond(handler)`; its URL."""

    class Stub(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            respond(self)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Stub) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
