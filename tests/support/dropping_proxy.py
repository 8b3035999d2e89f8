"""A way to a broker that passes requests on, and loses the answers that a test names."""

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


class DroppingProxy:
    """`url` to ask at; `targets` are what was asked for, in order.

    `loses` is asked with the number of each publish, from 0 on, once the broker has answered it:
    true closes the connection in place of the answer.
    """

    def __init__(self, loses: Callable[[int], bool]) -> None:
        self.url = ""
        self.loses = loses
        self.publishes = 0
        self.targets: list[str] = []


@contextmanager
def dropping_proxy(broker_url: str, loses: Callable[[int], bool]) -> Iterator[DroppingProxy]:
    """Serve until the block ends."""
    proxy = DroppingProxy(loses)
    broker = urlsplit(broker_url).netloc

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            kept = {"Accept", "Content-Type", "Authorization"}
            headers = {name: value for name, value in self.headers.items() if name in kept}
            upstream = http.client.HTTPConnection(broker)
            upstream.request(self.command, self.path, body or None, headers)
            answer = upstream.getresponse()
            content = answer.read()
            upstream.close()
            proxy.targets.append(self.path)
            if self.command == "POST":
                proxy.publishes += 1
                if proxy.loses(proxy.publishes - 1):
                    self.close_connection = True
                    return
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name not in {"Content-Length", "Date", "Server", "Connection"}:
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_PUT = do_GET  # noqa: N815  the server's names for them

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        proxy.url = f"http://127.0.0.1:{server.server_port}"
        yield proxy
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
