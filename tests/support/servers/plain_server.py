"""A plain HTTP server on a thread of its own, for tests that answer requests by hand."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class PlainHandler(BaseHTTPRequestHandler):
    """Answers each request with `respond`. Connections stay open."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def body(self) -> bytes:
        """Return the body of the request."""
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def respond(self) -> None:
        """Send an answer, or close the connection."""
        raise NotImplementedError

    def do_GET(self) -> None:
        """Answer a GET request; the server calls this method."""
        self.respond()

    do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815  the server's names for them

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextmanager
def served(handler: type[PlainHandler]) -> Iterator[str]:
    """Serve on a free port until the block ends; yield the URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
