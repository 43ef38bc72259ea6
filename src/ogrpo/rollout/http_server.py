"""An HTTP server of the standard library with bounds: on connections, time and bytes.

A client gets an answer in JSON whatever it sends, or its connection ends; none of them can hold a
thread for longer than the bounds say.
"""

import io
import json
import logging
import re
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ogrpo.rollout.address import bare_host
from ogrpo.system.terminal import shown

log = logging.getLogger(__name__)
CONNECTIONS = 512
"""Connections at a time; one more gets a 503."""
HEAD_SECONDS, BODY_SECONDS = 10.0, 60.0
"""Seconds in which a request's header has to be there, counted from its first byte (of a new
connection: from its start), and then its body, however slowly their bytes come."""
IDLE_SECONDS, WRITE_SECONDS = 300.0, 60.0
"""Seconds for which a connection may be silent between two requests, and that sending a piece of an
answer may take."""
BODY_BYTES, HELD_BYTES = 1 << 26, 1 << 29
"""Bytes at most in one body, and in the bodies of all connections together."""
BUSY = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_PIECE = 1 << 16
_LENGTH = re.compile(r"[0-9]{1,18}")


class BadRequest(Exception):
    """A client's error, and the status that says so."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class HttpServer(ThreadingHTTPServer):
    """A thread a connection, for as many as `CONNECTIONS`."""

    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._free = threading.BoundedSemaphore(CONNECTIONS)
        self._lock = threading.Lock()
        self._held = 0
        host, port = bare_host(address[0]), address[1]
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), handler)

    def serve_forever(self, poll_interval: float = 0.05) -> None:
        """Answers until `shutdown`, which takes as long as the interval."""
        super().serve_forever(poll_interval)

    def close(self) -> None:
        """Ends `serve_forever`, in another thread, and listens no more."""
        self.shutdown()
        self.server_close()

    def hold(self, size: int) -> bool:
        """Counts bytes of bodies in memory, negative ones let go; returns whether there is room."""
        with self._lock:
            self._held += size
            return self._held <= HELD_BYTES

    def process_request(self, request: Any, client_address: Any) -> None:
        """Hands a connection to a thread, if one is left."""
        if not self._free.acquire(blocking=False):
            with suppress(OSError):
                request.setblocking(False)
                request.send(BUSY)
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # the system has no thread left
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answers a connection's requests, and gives its thread back."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Does nothing: a client that goes away is no error of the server's."""


class _Timed(io.RawIOBase):
    """The bytes of a connection, until a deadline, however slowly they come."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._deadline = 0.0

    def readable(self) -> bool:
        return True

    def allow(self, seconds: float) -> None:
        """Sets the deadline."""
        self._deadline = time.monotonic() + seconds

    def readinto(self, buffer: Any, /) -> int:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the client is too slow")
        self._connection.settimeout(left)
        return self._connection.recv_into(buffer)


class Handler(BaseHTTPRequestHandler):
    """Reads requests within the bounds, and answers errors in JSON."""

    server: HttpServer  # pyright: ignore[reportIncompatibleVariableOverride]
    protocol_version = "HTTP/1.1"
    # Without it a small answer waits for the client's delayed acknowledgement.
    disable_nagle_algorithm = True

    def setup(self) -> None:
        """Puts the deadlines between the connection and its reader."""
        super().setup()
        self.rfile.close()
        self._timed = _Timed(self.connection)
        self._reader = self.rfile = io.BufferedReader(self._timed, _PIECE)
        self._holds = 0
        self._idle_seconds = HEAD_SECONDS  # a new connection has something to say

    def handle_one_request(self) -> None:
        """Answers one request, or ends the connection."""
        self._timed.allow(self._idle_seconds)
        self._idle_seconds = IDLE_SECONDS
        first = b""
        with suppress(OSError):
            first = self._reader.peek(1)
        if not first:
            self.close_connection = True
            return
        self._timed.allow(HEAD_SECONDS)
        try:
            super().handle_one_request()
        except OSError:  # the client did not wait
            self.close_connection = True
        finally:
            self.server.hold(-self._holds)
            self._holds = 0

    def read_body(self) -> bytes:
        """Returns the request's body.

        Raises:
          BadRequest: its length is not said in one way, is too large, or less came in time.
        """
        lengths = self.headers.get_all("Content-Length", [])
        closes = self.close_connection  # as the request says
        self.close_connection = True  # unless all of it is read: the rest is no request
        if self.headers.get("Transfer-Encoding") is not None:
            raise BadRequest("send a Content-Length, and no Transfer-Encoding", 411)
        if len(lengths) > 1 or not all(map(_LENGTH.fullmatch, lengths)):
            raise BadRequest(f"Content-Length is {', '.join(lengths)!r:.60}: send one whole number")
        left = int(lengths[0]) if lengths else 0
        if left > BODY_BYTES:
            raise BadRequest(f"the body has {left} bytes: send at most {BODY_BYTES}", 413)
        self._timed.allow(BODY_SECONDS)
        body = bytearray()
        while left:
            try:
                piece = self.rfile.read1(min(left, _PIECE))
            except TimeoutError as error:
                raise BadRequest(f"the body did not come within {BODY_SECONDS:g} s", 408) from error
            if not piece:
                raise BadRequest(f"the body ends {left} bytes before its Content-Length")
            body += piece
            left -= len(piece)
            self._holds += len(piece)
            if not self.server.hold(len(piece)):
                raise BadRequest("too many requests at a time: come again", 503)
        self.close_connection = closes
        return bytes(body)

    def send_json(self, answer: Any, status: int = HTTPStatus.OK) -> None:
        """Answers with JSON; text is sent as it is."""
        raw = (answer if isinstance(answer, str) else json.dumps(answer or {})).encode()
        self.start_answer(status, {"Content-Length": str(len(raw))})
        if self.command != "HEAD":
            self.wfile.write(raw)

    def start_answer(self, status: int, headers: Mapping[str, str]) -> None:
        """Sends status and headers; what follows has `WRITE_SECONDS` for each piece."""
        self.connection.settimeout(WRITE_SECONDS)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
        """Answers an error of the protocol, as others: in JSON."""
        self.close_connection = True
        self.request_version = self.protocol_version  # an unknown one is answered in ours
        self.refuse(BadRequest(message or HTTPStatus(code).phrase, code))

    def refuse(self, error: BadRequest) -> None:
        """Answers a client's error."""
        text = shown(str(error))[:300]
        log.info("%s: %d %s", self.client_address[0], error.status, text)
        self.send_json({"error": {"message": text}}, error.status)

    def version_string(self) -> str:
        """Returns the name of the server software."""
        return "ogrpo"

    def log_message(self, format: str, *args: object) -> None:
        """Does nothing: a line for each request would bury what matters."""
