"""Servers in a thread of a test."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


@contextmanager
def running(server: ThreadingHTTPServer) -> Iterator[ThreadingHTTPServer]:
    """Has a server answer in a thread, until the end."""
    thread = Thread(target=server.serve_forever, args=(0.01,), daemon=True)
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
        def handle_error(self, *_: object) -> None:
            """A client that goes away is what is tested."""

    with running(Server(("127.0.0.1", 0), Stub)) as server:
        yield f"http://127.0.0.1:{server.server_port}"
