"""Plain HTTP calls to a real broker, without retries or waiting.

They are for tests of the broker's answers during a fault.
"""

import http.client
import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import urlsplit


class Answer(NamedTuple):
    """The answer of a broker."""

    status: int
    headers: dict[str, str]
    raw: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.raw)

    @property
    def problem(self) -> str:
        """Return the type of the problem without its path."""
        return str(self.json["type"]).rpartition("/")[2]

    @property
    def retry_after_s(self) -> int:
        return int(self.headers["Retry-After"])


class Calls:
    """Calls to one broker. Each call opens a new connection unless `keep_alive` is set."""

    def __init__(self, url: str, *, timeout_s: float = 30.0, keep_alive: bool = False) -> None:
        self._netloc = urlsplit(url).netloc
        self._timeout_s = timeout_s
        self._keep_alive = keep_alive
        self._connection: http.client.HTTPConnection | None = None

    def __call__(self, method: str, path: str, body: object = None, **headers: str) -> Answer:
        """Send one request. A body that is not bytes is sent as JSON."""
        connection = self._connection or http.client.HTTPConnection(
            self._netloc, timeout=self._timeout_s
        )
        raw = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        if raw is not None and not isinstance(body, bytes):
            fields.setdefault("Content-Type", "application/json")
        try:
            connection.request(method, path, raw, fields)
            response = connection.getresponse()
            answer = Answer(response.status, dict(response.getheaders()), response.read())
        except BaseException:
            connection.close()
            self._connection = None
            raise
        if self._keep_alive:
            self._connection = connection
        else:
            connection.close()
        return answer

    def publish(self, topic: str, body: bytes | str, query: str = "") -> Answer:
        """Publish one raw message."""
        raw = body if isinstance(body, bytes) else body.encode()
        return self("POST", f"/v1/topics/{topic}/messages{query}", raw)

    def publish_until(self, topic: str, body: bytes, status: int, most: int = 10_000) -> int:
        """Publish the same message until the answer has `status`; return how often it was
        stored."""
        for stored in range(most):
            answer = self.publish(topic, body, "?queue=0")
            if answer.status == status:
                return stored
            assert answer.status == 200, answer
        raise AssertionError(f"not within {most} publishes: {status}")

    def bodies(self, topic: str, queue: int = 0) -> list[str]:
        """Return every body of a queue, from its first offset to its end."""
        found: list[str] = []
        path = f"/v1/topics/{topic}/queues/{queue}/messages?max_messages=10000&max_bytes=16777216"
        start = "from=earliest"
        while True:
            answer = self("GET", f"{path}&{start}")
            assert answer.status == 200, answer
            if not answer.json["messages"]:
                return found
            found += [message["body"] for message in answer.json["messages"]]
            start = f"offset={answer.json['next_offset']}"

    def alarms(self) -> dict[str, str]:
        """Return the alarms that /readyz reports."""
        alarms: dict[str, str] = self("GET", "/readyz").json["alarms"]
        return alarms

    def metric(self, name: str) -> float:
        """Return the value of a metric. `name` includes the labels, as /metrics prints them."""
        for line in self("GET", "/metrics").raw.decode().splitlines():
            if line.startswith(f"{name} "):
                return float(line.rpartition(" ")[2])
        raise AssertionError(f"no metric {name}")


def fetch(url: str, timeout_s: float = 10.0) -> Answer:
    """GET `url` once; return the answer with any status."""
    parts = urlsplit(url)
    return Calls(url, timeout_s=timeout_s)("GET", f"{parts.path}?{parts.query}")


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 180.0) -> None:
    """Poll until `condition` holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.02)
