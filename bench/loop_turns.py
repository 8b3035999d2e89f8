"""The longest time that one request blocks the event loop, for each endpoint at its limits.

    python -m bench.loop_turns [--json] [--only WORDS] [--times 3] [--small]

The broker runs on asyncio's own event loop in a thread of this process, so that the processor time
of each callback can be measured (time.thread_time). For each request, the longest callback of a run
is measured, and the shortest of several runs is printed. The limit for one event loop iteration is
20 ms. `--small` makes everything ten times smaller, to test this program itself.
"""

import argparse
import asyncio
import gc
import http.client
import json
import sys
import tempfile
import threading
import time
from asyncio import events
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import msgpack
from rich.console import Console
from rich.table import Table

from holdfast.broker import Broker
from holdfast.cli.process.garbage_freezer import GarbageFreezer
from holdfast.commitlog.format.batch_encoding import encode_batch
from holdfast.commitlog.format.message_id import format_message_id
from holdfast.config import load_config

MOST_MS = 20.0
_BATCH = "application/vnd.holdfast.batch"
_NDJSON = "application/x-ndjson"
_MSGPACK = "application/msgpack"


@dataclass
class Turns:
    """The longest callback of the event loop since `begin`, and its name."""

    longest_s: float = 0.0
    name: str = ""
    thread_id: int = 0

    def begin(self) -> None:
        self.longest_s, self.name = 0.0, ""


@dataclass(frozen=True)
class Ask:
    """One request at the limits of its endpoint. `prepare` is called before each measured run."""

    what: str
    method: str
    path: str
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    prepare: Callable[[], object] = lambda: None
    status: tuple[int, ...] = (200, 201)


@dataclass(frozen=True)
class Line:
    """The result of one request. `turn` is the name of the longest callback, and `seconds` is the
    total time."""

    what: str
    longest_ms: float
    turn: str
    seconds: float
    status: int
    reply_bytes: int


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--only", default="", help="lines whose name has one of these, joined by commas"
    )
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        lines = []
        for line in measure(Path(folder), options.only, options.times, small=options.small):
            lines.append(line)
            if options.json:
                print(json.dumps(asdict(line)), flush=True)
    if options.json:
        return
    table = Table("request", "longest turn ms", "in", "whole s", "status", "reply bytes")
    for line in lines:
        style = "red" if line.longest_ms > MOST_MS else ""
        table.add_row(
            line.what, f"{line.longest_ms:.1f}", line.turn, f"{line.seconds:.2f}",
            str(line.status), f"{line.reply_bytes:,}", style=style,
        )  # fmt: skip
    Console(width=160).print(table)


def measure(folder: Path, only: str, times: int, *, small: bool = False) -> Iterator[Line]:
    """Yield the figures of all requests whose name contains one of the words in `only`."""
    with _serving(folder) as (url, turns):
        client = _Client(url)
        factor = 10 if small else 1
        _fill(client, factor, only)
        for ask in asks(client, factor):
            if any(each in ask.what for each in only.split(",")):
                yield _longest(client, turns, ask, times)


def _longest(client: "_Client", turns: Turns, ask: Ask, times: int) -> Line:
    best: Line | None = None
    for _ in range(times):
        ask.prepare()
        time.sleep(0.05)  # wait for the broker's work after the last request
        gc.collect()
        turns.begin()
        started = time.perf_counter()
        status, reply = client.ask(ask.method, ask.path, ask.body, ask.headers)
        seconds = time.perf_counter() - started
        time.sleep(0.05)
        if status not in ask.status:
            print(f"{ask.what}: {status} {reply[:300]!r}", file=sys.stderr)
        line = Line(
            ask.what, round(turns.longest_s * 1000, 1), turns.name, round(seconds, 3), status,
            len(reply),
        )  # fmt: skip
        if best is None or line.longest_ms < best.longest_ms:
            best = line
    assert best is not None
    return best


# -- the broker ------------------------------------------------------------------------------


@contextmanager
def _serving(folder: Path) -> Iterator[tuple[str, Turns]]:
    """Run a broker in a thread, with every callback of its loop measured."""
    turns = Turns()
    loop = asyncio.SelectorEventLoop()
    config = load_config(
        file=None,
        environ={},
        flags={
            "data_dir": str(folder / "data"),
            "http_api.port": "0",
            "commitlog.segment_bytes": "64MiB",
            "groups.max_groups": "20000",
            "http_api.body_timeout_ms": "600000",
        },
    )
    broker = Broker(config)
    thread = threading.Thread(target=loop.run_forever, name="loop")
    thread.start()
    turns.thread_id = thread.ident or 0
    undo = _watch_callbacks(turns)
    try:
        asyncio.run_coroutine_threadsafe(broker.start(), loop).result(60)
        freezing = GarbageFreezer(broker.gone_count)
        freezing.start()
        yield broker.url, turns
        freezing.stop()
        asyncio.run_coroutine_threadsafe(broker.stop(), loop).result(60)
    finally:
        undo()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _watch_callbacks(turns: Turns) -> Callable[[], None]:
    plain = events.Handle._run

    def watched(handle: events.Handle) -> None:
        if threading.get_ident() != turns.thread_id:
            plain(handle)
            return
        started = time.thread_time()
        callback = handle._callback  # type: ignore[attr-defined]
        plain(handle)
        took = time.thread_time() - started
        if took > turns.longest_s:
            turns.longest_s, turns.name = took, _name_of(callback)

    events.Handle._run = watched  # type: ignore[method-assign, assignment]

    def undo() -> None:
        events.Handle._run = plain  # type: ignore[method-assign]

    return undo


def _name_of(callback: Any) -> str:
    task = getattr(callback, "__self__", None)
    if isinstance(task, asyncio.Task):
        return str(task.get_name() if not task.get_name().startswith("Task-") else "request")
    return str(getattr(callback, "__qualname__", callback))[:60]


class _Client:
    """A client that sends one request after another on a keep-alive connection."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._wire = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=600)

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: Any = None
    ) -> tuple[int, bytes]:
        self._wire.request(method, path, body, dict(headers or {}))
        answer = self._wire.getresponse()
        return answer.status, answer.read()

    def do(self, method: str, path: str, value: object = None) -> Any:
        """Send JSON, and return the decoded answer."""
        body = None if value is None else json.dumps(value).encode()
        status, reply = self.ask(method, path, body, {"Content-Type": "application/json"})
        assert status < 300, (method, path, status, reply[:500])
        return json.loads(reply)


# -- the stored data and the requests ----------------------------------------------------------


def _fill(client: _Client, factor: int, only: str) -> None:
    queues, many = 10_000 // factor, 10_000 // factor
    client.do("PUT", "/v1/topics/wide", {"queues": queues, "durability": "written"})
    client.do("PUT", "/v1/topics/deep", {"queues": 1, "durability": "written"})
    client.do("PUT", "/v1/topics/large", {"queues": 1, "durability": "written"})
    client.do("PUT", "/v1/topics/into", {"queues": queues, "durability": "written"})
    for start in range(0, queues, 1000):  # one message with key and property per queue
        blocks = b"".join(
            encode_batch([b"x" * 100], keys=["k"], properties=[{"n": "1"}], queue_id=queue)
            for queue in range(start, min(start + 1000, queues))
        )
        _send(client, "wide", blocks)
    for _ in range(200 // factor):
        bodies = [b"x" * 100] * 1000
        _send(client, "deep", encode_batch(
            bodies, keys=["k"] * 1000, tags=["t"] * 1000,
            properties=[{"a": "1", "b": "2"}] * 1000, queue_id=0,
        ))  # fmt: skip
    for _ in range(8):
        _send(client, "large", encode_batch([b"x" * 3_900_000], queue_id=0))
    client.do("PUT", "/v1/topics/escaped", {"queues": 2, "durability": "written"})
    for _ in range(4):  # JSON encodes each of these bytes as six bytes
        _send(client, "escaped", encode_batch([b"\0" * 3_900_000], keys=["k"], queue_id=0))
        _send(client, "escaped", encode_batch([b"\0" * 8_000] * 500, queue_id=1))
    client.do("PUT", "/v1/groups/escaped", {"topics": {"escaped": {}}})
    for number in range(many):
        if any(each in "groups metrics beside 10,000" for each in only.split(",")):
            client.do("PUT", f"/v1/groups/g{number}", {"topics": {"deep": {}, "matched*": {}}})
    for number in range(1000 // factor):
        client.do("PUT", f"/v1/topics/small{number}", {"queues": 8, "durability": "written"})
    client.do("PUT", "/v1/groups/wide", {"topics": {"wide": {}}, "max_in_flight": 100_000,
                                         "max_in_flight_per_member": 100_000})  # fmt: skip
    client.do("PUT", "/v1/groups/deep", {"topics": {"deep": {}}, "max_in_flight": 100_000,
                                         "max_in_flight_per_member": 100_000})  # fmt: skip


def _send(client: _Client, topic: str, blocks: bytes) -> None:
    status, reply = client.ask("POST", f"/v1/topics/{topic}/messages", blocks,
                               {"Content-Type": _BATCH})  # fmt: skip
    assert status == 200, reply


def asks(client: _Client, factor: int) -> Iterator[Ask]:
    """Yield requests at the limits of every endpoint."""
    queues = 10_000 // factor
    messages = 100_000 // factor
    small = {"body": "x" * 60}
    wide = {"body": "x" * 30, "key": "k", "tag": "t", "properties": {"a": "1", "b": "2"}}
    keyed = [{"body": "x", "key": f"key-{number}"} for number in range(messages)]
    few_queues = [{"body": "x" * 60, "queue": n % min(1900, queues)} for n in range(messages)]
    publish = "/v1/topics/into/messages"
    for name, values in (
        ("small", [small] * messages),
        ("with properties", [wide] * messages),
        ("to 1,900 queues", few_queues),
    ):
        whole = json.dumps({"messages": values}).encode()
        yield _publish(f"publish JSON, {name}", whole, "application/json")
        lines = b"\n".join(json.dumps(each).encode() for each in values)
        yield _publish(f"publish NDJSON, {name}", lines, _NDJSON)
        packed = msgpack.packb({"messages": values})
        yield _publish(f"publish msgpack, {name}", packed, _MSGPACK)
    yield Ask("publish JSON, 10,000 queues by key", "POST", publish,
              json.dumps({"messages": keyed}).encode(), {"Content-Type": "application/json"},
              status=(200, 413))  # fmt: skip
    just_below = json.dumps({"messages": [{"body": "x" * 20}] * 3000}).encode()[: 128 * 1024]
    count = just_below.count(b"body")
    below = json.dumps({"messages": [{"body": "x" * 20}] * (count - 1)}).encode()
    yield _publish("publish JSON, 128 KiB", below, "application/json")
    body = "x" * 3_900_000
    yield _publish("publish JSON, four bodies of 3.9 MB",
                   json.dumps({"messages": [{"body": body, "queue": 0}] * 4}).encode(),
                   "application/json")  # fmt: skip
    yield _publish("publish raw, 3.9 MB", body.encode(), "text/plain")
    batch = encode_batch([b"x" * 60] * messages, queue_id=0)
    yield _publish("publish binary, one batch", batch, _BATCH)
    blocks = b"".join(encode_batch([b"x" * 40] * 50, queue_id=n) for n in range(min(queues, 2000)))
    yield _publish("publish binary, 2,000 batches", blocks, _BATCH)
    just = b"".join(encode_batch([b"x" * 1900], queue_id=n % queues) for n in range(2000))
    yield _publish("publish binary, 4 MiB in 2,000 batches", just, _BATCH)

    most = "max_messages=10000&max_bytes=16777216"
    for media in ("application/json", _NDJSON, _MSGPACK, _BATCH):
        accept = {"Accept": media}
        for topic in ("deep", "large"):
            yield Ask(f"pull {topic} {media}", "GET",
                      f"/v1/topics/{topic}/queues/0/messages?offset=0&{most}",
                      headers=accept)  # fmt: skip
    for media in ("application/json", _NDJSON):
        for queue, bodies in ((0, "large"), (1, "small")):
            for limit in (most, "max_messages=100"):
                yield Ask(f"pull escaped, {bodies} bodies, {limit} {media}", "GET",
                          f"/v1/topics/escaped/queues/{queue}/messages?offset=0&{limit}",
                          headers={"Accept": media})  # fmt: skip
    topic_id = client.do("GET", "/v1/topics/escaped")["topic_id"]
    yield Ask("message, escaped", "GET", f"/v1/messages/{format_message_id(topic_id, 0, 0)}")
    yield Ask("search, escaped", "GET", "/v1/topics/escaped/messages/search?key=k")
    costly = " OR ".join(f"a LIKE '%{n}%x%'" for n in range(100))
    yield Ask("pull deep, a costly filter", "GET",
              f"/v1/topics/deep/queues/0/messages?offset=0&{most}&filter={quote(costly)}"
    )  # fmt: skip
    named = ",".join(f"{queue}:0" for queue in range(min(1024, queues)))
    for media in ("application/json", _BATCH):
        yield Ask(f"poll 1,024 queues {media}", "GET",
                  f"/v1/topics/wide/messages?offsets={named}&{most}",
                  headers={"Accept": media})  # fmt: skip
    ends = ",".join(f"{queue}:1" for queue in range(min(1024, queues)))
    yield Ask("poll 1,024 queues, held", "GET",
              f"/v1/topics/wide/messages?offsets={ends}&wait_ms=100")  # fmt: skip

    yield Ask("topic: create with 10,000 queues", "PUT", "/v1/topics/anew",
              json.dumps({"queues": queues}).encode(), {"Content-Type": "application/json"},
              prepare=lambda: client.ask("DELETE", "/v1/topics/anew?confirm=anew"))  # fmt: skip
    yield Ask("topic: put again", "PUT", "/v1/topics/wide",
              json.dumps({"queues": queues, "durability": "written"}).encode(),
              {"Content-Type": "application/json"})  # fmt: skip
    yield Ask("topic: delete with 10,000 queues", "DELETE", "/v1/topics/anew?confirm=anew",
              prepare=lambda: client.do("PUT", "/v1/topics/anew", {"queues": queues}))  # fmt: skip
    yield Ask("topic: add 9,999 queues", "PATCH", "/v1/topics/anew",
              json.dumps({"queues": queues}).encode(), {"Content-Type": "application/json"},
              prepare=lambda: (client.ask("DELETE", "/v1/topics/anew?confirm=anew"),
                               client.do("PUT", "/v1/topics/anew", {"queues": 1})))  # fmt: skip
    yield Ask("topics: list", "GET", "/v1/topics?limit=1000")
    yield Ask("topic: get 10,000 queues", "GET", "/v1/topics/wide")
    yield Ask("topic: get 10,000 queues, msgpack", "GET", "/v1/topics/wide",
              headers={"Accept": _MSGPACK})  # fmt: skip
    yield Ask("offset by time", "GET", "/v1/topics/deep/queues/0/offset?timestamp_ms=1")
    yield Ask("splits of 10,000 queues", "GET", "/v1/topics/wide/splits")
    yield Ask("splits of 10,000 queues, small", "GET",
              "/v1/topics/wide/splits?max_bytes=1024&min_splits=10000")  # fmt: skip
    yield Ask("splits of 10,000 queues, by time", "GET",
              "/v1/topics/wide/splits?start_timestamp_ms=1")  # fmt: skip
    yield Ask("splits of 10,000 queues, leased", "GET",
              "/v1/topics/wide/splits?lease_ms=1000")  # fmt: skip
    yield Ask("search", "GET", "/v1/topics/deep/messages/search?key=k&limit=1000")
    yield Ask("search in 10,000 queues", "GET", "/v1/topics/wide/messages/search?key=k&limit=1000")
    yield Ask("groups: list", "GET", "/v1/groups?limit=1000")
    offsets = json.dumps({"offsets": {str(queue): 1 for queue in range(queues)}}).encode()
    typed = {"Content-Type": "application/json"}
    yield Ask("offsets: put 10,000", "PUT", "/v1/groups/stored/topics/wide/offsets", offsets, typed)
    yield Ask("offsets: get 10,000", "GET", "/v1/groups/stored/topics/wide/offsets")
    yield Ask("offsets: reset 10,000", "POST", "/v1/groups/stored/topics/wide/offsets/reset",
              b'{"to": "earliest"}', typed)  # fmt: skip
    many_names = json.dumps({"offsets": {str(number): 1 for number in range(500_000)}}).encode()
    yield Ask("offsets: put 500,000 names", "PUT", "/v1/groups/stored/topics/wide/offsets",
              many_names, typed, status=(413,))  # fmt: skip
    as_many = json.dumps({"offsets": {str(number): 1 for number in range(49_000)}}).encode()
    yield Ask("offsets: put 49,000 names", "PUT", "/v1/groups/stored/topics/wide/offsets",
              as_many, typed, status=(404,))  # fmt: skip
    yield Ask("offsets: put 10,000 of a group with leases", "PUT",
              "/v1/groups/wide/topics/wide/offsets", offsets, typed)  # fmt: skip
    yield Ask("info", "GET", "/v1/info")
    yield Ask("healthz", "GET", "/healthz")
    yield Ask("readyz", "GET", "/readyz")
    yield Ask("metrics", "GET", "/metrics")
    yield Ask("openapi", "GET", "/openapi.json")
    yield Ask("publish beside 10,000 groups", "POST", "/v1/topics/deep/messages", b"x",
              {"Content-Type": "text/plain"})  # fmt: skip
    yield Ask("group: put over 10,000 queues", "PUT", "/v1/groups/anew",
              json.dumps({"topics": {"wide": {}}}).encode(), typed,
              prepare=lambda: client.ask("DELETE", "/v1/groups/anew?confirm=anew"))  # fmt: skip
    yield Ask("group: get 10,000 queues", "GET", "/v1/groups/wide")
    yield Ask("group: seek 10,000 queues", "POST", "/v1/groups/wide/seek", b'{"to": "earliest"}',
              typed)  # fmt: skip
    yield Ask("group: seek 10,000 queues by time", "POST", "/v1/groups/wide/seek",
              b'{"to": {"timestamp_ms": 1}}', typed, status=(200, 400))  # fmt: skip
    yield from _many_topics(client, 1000 // factor)
    ask = {"member": "m", "max_messages": 10_000, "max_bytes": 16 * 2**20}
    receive = json.dumps(ask).encode()
    seek = b'{"to": "earliest"}'
    for group in ("deep", "wide", "escaped"):
        yield Ask(f"group: receive 10,000 of {group}", "POST", f"/v1/groups/{group}/receive",
                  receive, typed,
                  prepare=lambda group=group: client.ask(  # type: ignore[misc]
                      "POST", f"/v1/groups/{group}/seek", seek, typed))  # fmt: skip
    browse = json.dumps({**ask, "browse": True}).encode()
    yield Ask("group: browse 10,000", "POST", "/v1/groups/deep/receive", browse, typed)
    junk = json.dumps({"receipts": [""] * 700_000}).encode()
    yield Ask("group: ack 700,000 junk", "POST", "/v1/groups/deep/ack", junk, typed,
              status=(400,))  # fmt: skip
    held: list[str] = []

    def lease() -> None:
        client.ask("POST", "/v1/groups/deep/seek", seek, typed)
        reply = client.do("POST", "/v1/groups/deep/receive", ask)
        held[:] = [each["receipt"] for each in reply["messages"]]

    for verb in ("ack", "release", "nack", "extend", "reject"):
        yield _Settling(f"group: {verb} 10,000", verb, lease, held)
    yield Ask("group: delete over 10,000 queues", "DELETE", "/v1/groups/anew?confirm=anew",
              prepare=lambda: client.ask("PUT", "/v1/groups/anew", b'{"topics": {"wide": {}}}',
                                         typed))  # fmt: skip


def _many_topics(client: _Client, topics: int) -> Iterator[Ask]:
    """Yield requests for groups of many topics, and for topics of many groups."""
    typed = {"Content-Type": "application/json"}
    names: dict[str, Any] = {f"small{number}": {} for number in range(topics)}
    named = json.dumps({"topics": names}).encode()

    def put() -> None:
        client.ask("PUT", "/v1/groups/many", named, typed)

    def delete() -> None:
        client.ask("DELETE", "/v1/groups/many?confirm=many")

    yield Ask("group: put over 1,000 topics", "PUT", "/v1/groups/many", named, typed, delete)
    yield Ask("group: put again over 1,000 topics", "PUT", "/v1/groups/many", named, typed, put)
    yield Ask("group: get 1,000 topics", "GET", "/v1/groups/many", prepare=put)
    for target in ('"earliest"', "1000", '{"small0": {"0": 0}}'):
        body = b'{"to": %s}' % target.encode()
        yield Ask(f"group: seek 1,000 topics to {target}", "POST", "/v1/groups/many/seek", body,
                  typed, put)  # fmt: skip
    yield Ask("group: delete over 1,000 topics", "DELETE", "/v1/groups/many?confirm=many",
              prepare=put)  # fmt: skip
    yield Ask("topic: create beside 10,000 groups that match it", "PUT", "/v1/topics/matched",
              b"{}", typed,
              lambda: client.ask("DELETE", "/v1/topics/matched?confirm=matched"))  # fmt: skip
    yield Ask("topic: delete with 10,000 groups", "DELETE", "/v1/topics/matched?confirm=matched",
              prepare=lambda: client.ask("PUT", "/v1/topics/matched", b"{}", typed))  # fmt: skip

    def patterns() -> None:
        client.ask("DELETE", "/v1/topics/patterned?confirm=patterned")
        for number in range(21):
            given: dict[str, Any] = {f"*{number}-{each}": {} for each in range(topics)}
            client.do("PUT", f"/v1/groups/patterns{number}", {"topics": given})

    yield Ask("topic: create beside 21,000 patterns", "PUT", "/v1/topics/patterned", b"{}", typed,
              patterns)  # fmt: skip
    for number in range(21):
        client.ask("DELETE", f"/v1/groups/patterns{number}?confirm=patterns{number}")


def _publish(what: str, body: bytes, media: str) -> Ask:
    return Ask(what, "POST", "/v1/topics/into/messages", body, {"Content-Type": media},
               status=(200, 413))  # fmt: skip


class _Settling(Ask):
    """A request whose body is known only after messages are leased."""

    def __init__(
        self, what: str, verb: str, lease: Callable[[], None], held: Sequence[str]
    ) -> None:
        super().__init__(what, "POST", f"/v1/groups/deep/{verb}", None,
                         {"Content-Type": "application/json"}, lease)  # fmt: skip
        object.__setattr__(self, "_held", held)

    def __getattribute__(self, name: str) -> Any:
        if name == "body":
            receipts = object.__getattribute__(self, "_held")
            value: dict[str, object] = {"receipts": list(receipts)}
            if self.path.endswith("/extend"):
                value["lease_ms"] = 60_000
            return json.dumps(value).encode()
        return object.__getattribute__(self, name)


if __name__ == "__main__":
    main()
