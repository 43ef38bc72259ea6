"""A folder of releases behind HTTP, for servers that share no filesystem with the trainer.

Read-only, behind a token, on the loopback interface unless told otherwise; nothing but the three
files of a release can be asked for.
"""

import hmac
import re
import secrets
import shutil
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from ogrpo.rollout.weights.store import DELTA, MANIFEST, MODEL

_RELEASE_FILE = re.compile(
    rf"/(v\d+)/({re.escape(MANIFEST)}|{re.escape(MODEL)}|{re.escape(DELTA)})"
)


class HttpServer(ThreadingHTTPServer):
    """A thread a connection, and room for many that come at once: 5 is the default."""

    daemon_threads = True
    request_queue_size = 1024


class WeightShare:
    """Serves a store's folder; `bytes_sent` counts what was pulled.

    Args:
        folder: the store's.
        host: the interface to listen on, which servers on other machines must reach.
        port: 0 takes a free one.
        advertised: the host name that servers are given; `host` by default.
    """

    def __init__(
        self, folder: Path, *, host: str = "127.0.0.1", port: int = 0, advertised: str | None = None
    ) -> None:
        self.token = secrets.token_urlsafe(32)
        self.bytes_sent = 0
        self._lock = threading.Lock()
        self._server = HttpServer((host, port), self._handler(folder.resolve()))
        self.url = f"http://{advertised or host}:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _count(self, size: int) -> None:
        with self._lock:
            self.bytes_sent += size

    def _handler(self, folder: Path) -> type[BaseHTTPRequestHandler]:
        share = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                given = self.headers.get("Authorization", "")
                if not hmac.compare_digest(given.encode(), f"Bearer {share.token}".encode()):
                    self._refuse(HTTPStatus.UNAUTHORIZED)
                elif (match := _RELEASE_FILE.fullmatch(self.path)) is None:
                    self._refuse(HTTPStatus.NOT_FOUND)
                else:
                    self._send(folder / match[1] / match[2])

            def _send(self, file: Path) -> None:
                try:
                    opened = file.open("rb")
                except FileNotFoundError:
                    self._refuse(HTTPStatus.NOT_FOUND)
                    return
                with opened:
                    size = file.stat().st_size
                    self.send_response(HTTPStatus.OK)
                    self.send_header("Content-Length", str(size))
                    self.end_headers()
                    shutil.copyfileobj(opened, self.wfile, 1 << 20)
                share._count(size)

            def _refuse(self, status: HTTPStatus) -> None:
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Nothing: the run's metrics say what was pulled."""

        return Handler
