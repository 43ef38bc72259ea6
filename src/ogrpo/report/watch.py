"""The page of a run while it goes on, over HTTP."""

import html
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from ogrpo.report.run_dir import RunDir
from ogrpo.report.run_page import page_of

EVERY = 10
"""Seconds after which a browser asks for the page again."""


def make_server(run: RunDir, host: str, port: int) -> ThreadingHTTPServer:
    """Returns a server, not yet serving, that draws the run's page anew for each request.

    It writes nothing into the run's folder. A page that cannot be drawn yet says why.
    """

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path != "/":
                self.send_error(404)
                return
            try:
                page = page_of(run)
            except ValueError as error:
                page = f"<!doctype html><title>ogrpo watch</title><p>{html.escape(str(error))}"
            content = page.encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Refresh", str(EVERY))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing of requests."""

    return ThreadingHTTPServer((host, port), Page)
