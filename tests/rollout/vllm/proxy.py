"""Stands before any server and spoils the requests that it is told to spoil.

with Proxy(server.url) as proxy:
    spoilt = proxy.spoil("/resume", undelivered)      # the next request of that path
    ...                                               # what is spoilt is asked at proxy.url
    assert spoilt.met.is_set()
"""

import http.client
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

LONGEST = 600.0


class Cut(Exception):
    """The connection ends here."""


class Spoilt:
    """The next request of a path, and what came of it."""

    def __init__(self, path: str, fault: "Fault") -> None:
        self.path, self.fault, self.left = path, fault, True
        self.met = threading.Event()
        """It came, and was delivered where the fault does that."""
        self.released = threading.Event()
        """Lets go what is held."""


Fault = Callable[[Callable[[], bytes], Spoilt], bytes]
"""`(what delivers the request and returns the whole answer, Spoilt) -> the answer`."""


def undelivered(_: object, __: object) -> bytes:
    """The request is lost."""
    raise Cut


def held(deliver: Callable[[], bytes], spoilt: Spoilt) -> bytes:
    """The request is carried out, the answer comes when it is let go."""
    answer = deliver()
    spoilt.met.set()
    spoilt.released.wait(LONGEST)
    return answer


class Proxy:
    """A proxy in front of the server at a URL."""

    def __init__(self, url: str) -> None:
        self.origin = urlsplit(url).netloc
        self.connections: set[socket.socket] = set()
        self._faults: list[Spoilt] = []
        self._lock = threading.Lock()
        self._server = _Listener(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def spoil(self, path: str, fault: Fault) -> Spoilt:
        """Spoils the next request whose path ends so."""
        self._faults.append(Spoilt(path, fault))
        return self._faults[-1]

    def __enter__(self) -> "Proxy":
        return self

    def __exit__(self, *_: object) -> None:
        """Lets go what is held, cuts all connections and refuses others."""
        for spoilt in self._faults:
            spoilt.released.set()
        self._server.shutdown()
        self._server.server_close()
        for connection in list(self.connections):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    def answer(self, path: str, deliver: Callable[[], bytes]) -> bytes:
        """Returns the whole answer to a request; raises Cut where it has none."""
        name = urlsplit(path).path
        with self._lock:
            due = [x for x in self._faults if x.left and name.endswith(x.path)][:1]
            for spoilt in due:
                spoilt.left = False
        if not due:
            return deliver()
        try:
            return due[0].fault(deliver, due[0])
        finally:
            due[0].met.set()


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
            proxy.connections.add(self.connection)

        def finish(self) -> None:
            proxy.connections.discard(self.connection)
            super().finish()

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {k: v for k, v in self.headers.items() if k.lower() != "connection"}

            def deliver() -> bytes:
                server = http.client.HTTPConnection(proxy.origin, timeout=LONGEST)
                try:
                    server.request(str(self.command), self.path, body, headers)
                    reply = server.getresponse()
                    kind, content = reply.headers["Content-Type"], reply.read()
                finally:
                    server.close()
                lines = [f"HTTP/1.1 {reply.status} -", f"Content-Type: {kind}"]
                lines += [f"Content-Length: {len(content)}", "", ""]
                return "\r\n".join(lines).encode() + content

            try:
                self.connection.sendall(proxy.answer(self.path, deliver))
            except (Cut, OSError, http.client.HTTPException):
                self.close_connection = True
                with suppress(OSError):
                    self.connection.shutdown(socket.SHUT_RDWR)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            """Logs nothing."""

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
