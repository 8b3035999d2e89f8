"""What single requests cost: publishes and pulls, one after another on one connection.

    python -m bench.http_requests [--seconds 2] [--url http://...]

A broker process on loopback and a client with a bare blocking socket, so that the figures are
the broker's; written mode unless the line says otherwise. Beside them stands what the same
server costs for an endpoint that does nothing (/healthz): the floor that aiohttp sets here.
"""

import argparse
import os
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from holdfast.commitlog.batch import encode_batch


class Wire:
    """One keep-alive connection that sends a request and waits for its whole answer."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.socket = socket.create_connection((parts.hostname, parts.port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, request: bytes) -> bytes:
        self.socket.sendall(request)
        data = self.socket.recv(1 << 20)
        end = data.index(b"\r\n\r\n") + 4
        head = data[:end].lower()
        at = head.index(b"content-length:") + 15
        left = int(head[at : head.index(b"\r", at)]) - (len(data) - end)
        parts = [data]
        while left > 0:
            parts.append(self.socket.recv(1 << 20))
            left -= len(parts[-1])
        answer = b"".join(parts)
        assert answer.startswith((b"HTTP/1.1 200", b"HTTP/1.1 201")), answer[:500]
        return answer


def request(method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: bench"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def measure(name: str, seconds: float, once: Callable[[], int], *, per: str = "") -> None:
    """Call `once`, which returns how many bytes it moved, for some time; print a row."""
    for _ in range(50):
        once()
    count = moved = 0
    started = time.perf_counter()
    while (spent := time.perf_counter() - started) < seconds:
        moved += once()
        count += 1
    rate = f"{moved / spent / 1e6:9.1f} MB/s" if moved else " " * 14
    print(f"{name:46}{count / spent:9.0f}/s {spent / count * 1e6:9.1f} us {rate}{per}")


def run(url: str, seconds: float) -> None:
    wire = Wire(url)
    json = {"Content_Type": "application/json"}
    batch = {"Content_Type": "application/vnd.holdfast.batch"}
    one = b'{"messages":[{"body":"' + b"x" * 100 + b'","key":"k"}]}'
    for topic in ("bench", "bench-1k", "bench-100k"):
        wire.ask(request("PUT", f"/v1/topics/{topic}", b'{"queues":1}', **json))

    def publish(topic: str, body: bytes, durability: str, **headers: str) -> Callable[[], int]:
        path = f"/v1/topics/{topic}/messages?durability={durability}"
        whole = request("POST", path, body, **headers)
        return lambda: len(wire.ask(whole)) * 0 + len(body)

    def pull(topic: str, query: str, accept: str) -> Callable[[], int]:
        path = f"/v1/topics/{topic}/queues/0/messages?{query}"
        whole = request("GET", path, Accept=accept)
        return lambda: len(wire.ask(whole))

    thousand = encode_batch([b"x" * 100] * 1000, born_timestamp_us=1, queue_id=0)
    large = encode_batch([b"x" * 1024] * 100, born_timestamp_us=1, queue_id=0)
    health = request("GET", "/healthz")
    measure("GET /healthz", seconds, lambda: len(wire.ask(health)) * 0)
    measure("POST one JSON message, written", seconds, publish("bench", one, "written", **json))
    measure("POST one JSON message, fsync", seconds, publish("bench", one, "fsync", **json))
    measure("POST one raw message, written", seconds, publish("bench", b"x" * 100, "written"))
    measure("POST a batch of 1,000 x 100 B, written", seconds,
            publish("bench-1k", thousand, "written", **batch))  # fmt: skip
    measure("POST a batch of 100 x 1 KiB, written", seconds,
            publish("bench-100k", large, "written", **batch))  # fmt: skip
    messages = b",".join([b'{"body":"' + b"x" * 100 + b'"}'] * 1000)
    measure("POST 1,000 JSON messages, written", seconds,
            publish("bench", b'{"messages":[' + messages + b"]}", "written", **json))  # fmt: skip
    measure("GET nothing new", seconds, pull("bench", "from=latest", "application/json"))
    measure("GET one message, JSON", seconds,
            pull("bench", "offset=0&max_messages=1", "application/json"))  # fmt: skip
    for media in ("application/json", "application/x-ndjson", "application/msgpack",
                  "application/vnd.holdfast.batch"):  # fmt: skip
        measure(f"GET 1,000 x 100 B, {media.partition('/')[2]}", seconds,
                pull("bench-1k", "offset=0&max_messages=1000", media))  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="time for each row")
    parser.add_argument("--url", help="a broker that runs already, in place of one of its own")
    options = parser.parse_args()
    print(f"load average {os.getloadavg()[0]:.2f}")
    if options.url:
        run(options.url, options.seconds)
        return
    from holdfast.running_broker import RunningBroker

    with tempfile.TemporaryDirectory() as folder, RunningBroker(Path(folder) / "data") as broker:
        run(broker.url, options.seconds)


if __name__ == "__main__":
    main()
