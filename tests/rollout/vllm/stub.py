"""Servers in a thread of a test."""

from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


@contextmanager
def running(server):
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
def serving(respond):
    """A server whose answer is `respond(handler)`; its URL."""

    class Stub(BaseHTTPRequestHandler):
        def do_GET(self):
            respond(self)

        do_POST = do_GET

        def log_message(self, *_):
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_):
            """A client that goes away is what is tested."""

    with running(Server(("127.0.0.1", 0), Stub)) as server:
        yield f"http://127.0.0.1:{server.server_port}"
