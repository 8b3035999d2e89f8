"""A proxy to a broker that forwards requests, and drops the answers that a test selects."""

import http.client
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from tests.support.servers.plain_server import PlainHandler, served


class DroppingProxy:
    """The proxy is at `url`; `targets` are the request targets in order. It drops the answer to the
    n-th publish, counted from 0, if `loses(n)` is True."""

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

    class Handler(PlainHandler):
        def respond(self) -> None:
            kept = {"Accept", "Content-Type", "Authorization"}
            headers = {name: value for name, value in self.headers.items() if name in kept}
            upstream = http.client.HTTPConnection(broker)
            upstream.request(self.command, self.path, self.body() or None, headers)
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

    with served(Handler) as url:
        proxy.url = url
        yield proxy
