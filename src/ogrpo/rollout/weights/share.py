"""A folder of releases behind HTTP, for servers that share no filesystem with the trainer.

Read-only, behind a token, on the loopback interface unless told otherwise; nothing but the two
files of a release can be asked for.
"""

import hmac
import os
import re
import secrets
import shutil
import threading
from http import HTTPStatus
from pathlib import Path

from ogrpo.rollout.address import url_of
from ogrpo.rollout.http_server import BadRequest, Handler, HttpServer
from ogrpo.rollout.weights.store import MANIFEST, MODEL

_RELEASE_FILE = re.compile(rf"/([av]\d+)/({re.escape(MANIFEST)}|{re.escape(MODEL)})")


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
        self.url = url_of(advertised or host, self._server.server_port)
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

    def _handler(self, folder: Path) -> type[Handler]:
        share = self

        class ShareHandler(Handler):
            def do_GET(self) -> None:
                try:
                    self.read_body()
                    credentials = self.headers.get("Authorization", "").encode()
                    if not hmac.compare_digest(credentials, f"Bearer {share.token}".encode()):
                        raise BadRequest("the token is not this share's", HTTPStatus.UNAUTHORIZED)
                    match = _RELEASE_FILE.fullmatch(self.path)
                    if match is None:
                        raise BadRequest("there is no such file", HTTPStatus.NOT_FOUND)
                    self._send(folder / match[1] / match[2])
                except BadRequest as error:
                    self.refuse(error)

            def _send(self, file: Path) -> None:
                try:
                    opened = file.open("rb")
                except FileNotFoundError as error:  # it is older than those that are kept
                    raise BadRequest("there is no such file", HTTPStatus.NOT_FOUND) from error
                with opened:
                    size = os.fstat(opened.fileno()).st_size
                    self.start_answer(HTTPStatus.OK, {"Content-Length": str(size)})
                    shutil.copyfileobj(opened, self.wfile, 1 << 20)
                share._count(size)

        return ShareHandler
