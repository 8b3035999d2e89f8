"""The cost of single requests: publishes and pulls, one after another on one connection.

    python -m bench.http_requests [--json] [--requests 2000]

The broker is a process on loopback. The client uses a plain blocking socket, so that the figures
are those of the broker. /healthz does no work, so it shows the fixed cost of the HTTP layer on this
machine; in its line, the "messages" are requests.
"""

import socket
from collections.abc import Callable
from urllib.parse import urlsplit

from bench.harness import arguments, broker, measure, report
from holdfast.commitlog.format.batch_encoding import encode_batch

JSON = {"Content-Type": "application/json"}
BATCH = {"Content-Type": "application/vnd.holdfast.batch"}
PULL_TYPES = (
    "application/json",
    "application/x-ndjson",
    "application/msgpack",
    "application/vnd.holdfast.batch",
)


class Wire:
    """One keep-alive connection that sends a request and waits for its complete answer."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._socket = socket.create_connection((parts.hostname, parts.port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, request: bytes) -> bytes:
        """Send a request; return the body of its answer, which must be a success."""
        self._socket.sendall(request)
        data = self._socket.recv(1 << 20)
        end = data.index(b"\r\n\r\n") + 4
        head = data[:end].lower()
        assert head.startswith((b"http/1.1 200", b"http/1.1 201")), data[:500]
        at = head.index(b"content-length:") + 15
        left = int(head[at : head.index(b"\r", at)]) - (len(data) - end)
        pieces = [data[end:]]
        while left > 0:
            pieces.append(self._socket.recv(1 << 20))
            left -= len(pieces[-1])
        return b"".join(pieces)


def encode_request(
    method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def json_messages(count: int) -> bytes:
    message = b'{"body":"' + b"x" * 100 + b'","key":"k"}'
    return b'{"messages":[' + b",".join([message] * count) + b"]}"


def main() -> None:
    options = arguments(__doc__ or "", requests=2000)
    figures = []
    with broker() as running:
        wire = Wire(running.url)

        def run(
            name: str, request: bytes, *, mode: str = "-", messages: int = 1, size: int = 100
        ) -> None:
            repeat = max(options.requests // (1 if messages == 1 else 4), 1)
            for _ in range(min(repeat, 100)):
                wire.ask(request)
            figures.append(
                measure(
                    name,
                    running,
                    _repeated(lambda: wire.ask(request), repeat),
                    durability=mode,
                    messages=messages * repeat,
                    body_bytes=size,
                )
            )

        def publish(
            name: str, body: bytes, headers: dict[str, str], mode: str, messages: int, size: int
        ) -> None:
            path = f"/v1/topics/{messages}x{size}/messages?durability={mode}"
            request = encode_request("POST", path, body, headers)
            run(name, request, mode=mode, messages=messages, size=size)

        def pull(name: str, messages: int, query: str, media: str) -> None:
            path = f"/v1/topics/{messages}x100/queues/0/messages?{query}"
            request = encode_request("GET", path, headers={"Accept": media})
            run(name, request, messages=messages)

        for topic in ("1x100", "1000x100", "100x1024"):
            wire.ask(encode_request("PUT", f"/v1/topics/{topic}", b'{"queues":1}', JSON))
        run("GET /healthz", encode_request("GET", "/healthz"), size=0)
        for mode in ("written", "fsync"):
            publish("POST one JSON message", json_messages(1), JSON, mode, 1, 100)
        publish("POST one raw message", b"x" * 100, {}, "written", 1, 100)
        publish("POST 1,000 JSON messages", json_messages(1000), JSON, "written", 1000, 100)
        block = encode_batch([b"x" * 100] * 1000, born_timestamp_us=1, queue_id=0)
        publish("POST a batch", block, BATCH, "written", 1000, 100)
        block = encode_batch([b"x" * 1024] * 100, born_timestamp_us=1, queue_id=0)
        publish("POST a batch", block, BATCH, "written", 100, 1024)
        pull("GET nothing new", 1, "from=latest", PULL_TYPES[0])
        pull("GET one message", 1, "offset=0&max_messages=1", PULL_TYPES[0])
        for media in PULL_TYPES:
            name = f"GET 1,000 in {media.partition('/')[2]}"
            pull(name, 1000, "offset=0&max_messages=1000", media)
    report(figures, as_json=options.json)


def _repeated(once: Callable[[], object], count: int) -> Callable[[], None]:
    def work() -> None:
        for _ in range(count):
            once()

    return work


if __name__ == "__main__":
    main()
