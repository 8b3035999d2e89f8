"""The broker's memory under every kind of memory-consuming client, in a memory cgroup of 512 MiB.

    python -m bench.memory_table [--json] [--only WORDS] [--seconds 8] [--memory-mib 512]

In each row, a greedy client sends requests of one kind from one address. It has no token if none is
needed, and otherwise a token for one topic. Meanwhile, another client publishes to another topic
and pulls from it. If the broker uses more memory than the cgroup allows, the kernel kills it. Only
root can create a cgroup.
"""

import argparse
import contextlib
import http.client
import json
import socket
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

from rich.console import Console
from rich.table import Table

from bench.memory_cgroup import memory_cgroup
from holdfast.commitlog.format.batch_encoding import encode_batch
from holdfast.running_broker import RunningBroker

MIB = 1024 * 1024
GREEDY, MODEST = "127.0.0.66", "127.0.0.9"
_BATCH = "application/vnd.holdfast.batch"


@dataclass(frozen=True)
class Line:
    """The result of one row. `others_*` are measurements of the other client; `refused` are answers
    other than 200 to the greedy client."""

    row: str
    is_alive: bool
    others_asked: int
    others_failed: int
    others_p99_ms: float
    peak_mib: float
    arriving_mib: float
    refused: int


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", default="", help="rows whose name has this")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--memory-mib", type=int, default=512)
    options = parser.parse_args()
    lines = []
    for name in ROWS:
        if options.only in name:
            line = measure(name, options.seconds, options.memory_mib * MIB)
            lines.append(line)
            print(json.dumps(asdict(line)) if options.json else f"{line}", flush=True)
    if not options.json:
        table = Table("row", "alive", "others asked", "failed", "p99 ms", "peak MiB", "refused")
        for line in lines:
            table.add_row(
                line.row, str(line.is_alive), str(line.others_asked), str(line.others_failed),
                f"{line.others_p99_ms:.0f}", f"{line.peak_mib:.0f}", str(line.refused),
            )  # fmt: skip
        Console(width=140).print(table)


def measure(name: str, seconds: float, memory_bytes: int = 512 * MIB) -> Line:
    """Run the clients of one row for `seconds`; return the result. Raise NoCgroup."""
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder,
        memory_cgroup(memory_bytes) as group,
        _running(Path(folder), group) as (broker, tokens),
    ):
        greedy = Greedy(broker.url, tokens["mine"], time.monotonic() + seconds)
        others = _Others(broker.url, tokens["theirs"])
        threads = [threading.Thread(target=others.run, args=(greedy.until_s,))]
        threads += [threading.Thread(target=_act, args=(ROWS[name], greedy)) for _ in range(2)]
        for thread in threads:
            thread.start()
        arriving = 0.0
        while time.monotonic() < greedy.until_s:
            time.sleep(0.25)
            arriving = max(arriving, others.metric("holdfast_http_arriving_bytes"))
        for thread in threads:
            thread.join()
        is_alive = others.is_served()
        greedy.close()
        return Line(
            name, is_alive, others.asked, others.failed, round(others.p99_ms(), 1),
            round(peak_bytes(group) / MIB, 1), round(arriving / MIB, 1), greedy.refused,
        )  # fmt: skip


def _act(row: "Callable[[Greedy], None]", greedy: "Greedy") -> None:
    while time.monotonic() < greedy.until_s:
        with contextlib.suppress(OSError, http.client.HTTPException):
            row(greedy)


# -- the broker ------------------------------------------------------------------------------


def peak_bytes(group: Path) -> int:
    """Return the highest memory of the group's processes, without file pages."""
    for line in (group / "memory.stat").read_text().splitlines():
        name, _, value = line.partition(" ")
        if name in ("total_rss", "anon"):
            return max(int(value), _peaks.get(group, 0))
    return 0


_peaks: dict[Path, int] = {}


def _watch_peak(group: Path, over: threading.Event) -> None:
    while not over.wait(0.02):
        with contextlib.suppress(OSError):
            _peaks[group] = peak_bytes(group)


@contextlib.contextmanager
def _running(folder: Path, group: Path) -> Iterator[tuple[RunningBroker, dict[str, str]]]:
    data_dir = folder / "data"
    program = (
        "bash", "-c", f'echo $$ > {group / "cgroup.procs"}; exec "$0" -m holdfast "$@"',
        sys.executable,
    )  # fmt: skip
    arguments = (
        *("--access-authentication", "on"),
        *("--commitlog-segment-bytes", "64MiB"),
        *("--commitlog-retention-interval-ms", "500"),
    )
    tokens = {}
    data_dir.mkdir()
    broker = RunningBroker(data_dir, arguments, program=program, start_timeout_s=60)
    over = threading.Event()
    _peaks.pop(group, None)
    watcher = threading.Thread(target=_watch_peak, args=(group, over))
    with broker:
        for name, grants in (
            ("mine", ("publish:=mine", "consume:=mine:mine", "consume:wide:mine")),
            ("theirs", ("publish:=theirs", "consume:=theirs", "operate")),
            ("all", ("all",)),
        ):
            command = [sys.executable, "-m", "holdfast", "token", "create"]
            command += ["--data-dir", str(data_dir), "--out", str(folder / name)]
            for grant in grants:
                command += ["--allow", grant]
            subprocess.run(command, check=True, capture_output=True)
            tokens[name] = (folder / name).read_text().strip()
        _set_up(broker.url, tokens["all"])
        watcher.start()
        try:
            yield broker, tokens
        finally:
            over.set()
            watcher.join()


def _set_up(url: str, token: str) -> None:
    parts = urlsplit(url)
    wire = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
    deadline = time.monotonic() + 30
    for name, queues in (("mine", 1024), ("theirs", 1), ("wide", 10_000)):
        settings = {"queues": queues, "durability": "written", "retention_bytes": 64 * MIB}
        while True:
            headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
            wire.request("PUT", f"/v1/topics/{name}", json.dumps(settings), headers)
            answer = wire.getresponse()
            said = answer.read()
            if answer.status < 300:
                break
            if time.monotonic() > deadline:  # the broker checks the token file periodically
                raise TimeoutError(said.decode())
            time.sleep(0.1)


class _Others:
    """The other client: it publishes and pulls a message repeatedly, and measures both requests."""

    def __init__(self, url: str, token: str) -> None:
        self._parts = urlsplit(url)
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "text/plain"}
        self._took: list[float] = []
        self.asked = self.failed = 0

    def run(self, until_s: float) -> None:
        wire = None
        while time.monotonic() < until_s:
            started = time.perf_counter()
            self.asked += 1
            try:
                wire = wire or self._connect()
                for method, path, body in (
                    ("POST", "/v1/topics/theirs/messages", b"x"),
                    ("GET", "/v1/topics/theirs/queues/0/messages?from=latest", None),
                ):
                    wire.request(method, path, body, self._headers)
                    answer = wire.getresponse()
                    answer.read()
                    if answer.status != 200:
                        self.failed += 1
                        break
            except (OSError, http.client.HTTPException):
                self.failed += 1
                wire = None
            self._took.append(time.perf_counter() - started)
            time.sleep(0.01)

    def metric(self, name: str) -> float:
        """Return the value of a metric, or 0 if the broker does not answer."""
        with contextlib.suppress(OSError, http.client.HTTPException):
            wire = self._connect()
            wire.request("GET", "/metrics", None, self._headers)
            for line in wire.getresponse().read().decode().splitlines():
                if line.startswith(name + " "):
                    return float(line.split()[1])
        return 0.0

    def is_served(self) -> bool:
        """Return whether the broker answers a publish within 60 s."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError, http.client.HTTPException):
                wire = self._connect()
                wire.request("POST", "/v1/topics/theirs/messages", b"x", self._headers)
                if wire.getresponse().status == 200:
                    return True
            time.sleep(0.2)
        return False

    def p99_ms(self) -> float:
        """Return the 99th percentile of the duration of both requests together."""
        took = sorted(self._took) or [0.0]
        return took[min(int(len(took) * 0.99), len(took) - 1)] * 1000

    def _connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(
            self._parts.hostname or "", self._parts.port, timeout=20, source_address=(MODEST, 0)
        )


# -- the kinds of clients ----------------------------------------------------------------------


class Greedy:
    """The connections and requests of a greedy client. `refused` counts answers other than 200."""

    def __init__(self, url: str, token: str, until_s: float) -> None:
        parts = urlsplit(url)
        self._at = (parts.hostname or "", parts.port or 0)
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self.auth = f"Authorization: Bearer {token}\r\n".encode()
        self.until_s = until_s
        self.refused = 0
        self.number = 0

    def next_number(self) -> int:
        with self._lock:
            self.number += 1
            return self.number

    def keep(self, sent: bytes, most: int, *, receive_buffer: int = 4096) -> None:
        """Open a connection, send `sent` and keep it open; at most `most` connections are kept."""
        if len(self._sockets) >= most:
            time.sleep(0.05)
            return
        one = socket.socket()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        one.bind((GREEDY, 0))
        one.settimeout(5)
        with self._lock:
            self._sockets.append(one)
        one.connect(self._at)
        one.settimeout(0.5)  # a socket that the broker stops reading is left open
        with contextlib.suppress(TimeoutError):
            one.sendall(sent)

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> bytes:
        """Send a request and wait for its answer; return the answer's body."""
        wire = http.client.HTTPConnection(*self._at, timeout=20, source_address=(GREEDY, 0))
        name, _, value = self.auth.decode().strip().partition(": ")
        named = {key.replace("_", "-"): text for key, text in headers.items()}
        try:
            wire.request(method, path, body, {name: value, **named})
            answer = wire.getresponse()
            said = answer.read()
            if answer.status != 200:
                self.refused += 1
            return said
        finally:
            wire.close()

    def close(self) -> None:
        for one in self._sockets:
            one.close()


def _head(path: str, auth: bytes = b"", method: str = "GET") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\n".encode() + auth


_WIDE = b"".join(b"X-%d: %s\r\n" % (n, b"x" * 8000) for n in range(15))
_SURROGATES = b"".join(b"X-%d: \xf0\x9f\x98\x80%s\r\n" % (n, b"x" * 7900) for n in range(15))
_MANY = b"".join(b"%d:\r\n" % n for n in range(120))
_PULL = "/v1/topics/mine/queues/{}/messages?from=latest&wait_ms=60000"


def unfinished_heads(greedy: Greedy) -> None:
    greedy.keep(_head("/") + _WIDE, 2000)


def unfinished_wide_heads(greedy: Greedy) -> None:
    greedy.keep(_head("/") + _SURROGATES, 2000)


def unfinished_small_headers(greedy: Greedy) -> None:
    greedy.keep(_head("/") + _MANY, 4000)


def waiting_heads(greedy: Greedy) -> None:
    held = _head(_PULL.format(0), greedy.auth) + b"\r\n"
    greedy.keep(held + (_head("/healthz") + _WIDE + b"\r\n") * 32, 1000)


def waiting_small_headers(greedy: Greedy) -> None:
    held = _head(_PULL.format(0), greedy.auth) + b"\r\n"
    greedy.keep(held + (_head("/healthz") + _MANY + b"\r\n") * 64, 4000)


def held_with_wide_heads(greedy: Greedy) -> None:
    greedy.keep(_head(_PULL.format(0), greedy.auth) + _SURROGATES + b"\r\n", 2000)


def held_with_bodies(greedy: Greedy) -> None:
    length = b"Content-Length: 1000000\r\n\r\n" + b"x" * 100_000
    greedy.keep(_head(_PULL.format(0), greedy.auth) + length, 4000)


def held_with_chunks(greedy: Greedy) -> None:
    chunks = b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 20_000
    greedy.keep(_head(_PULL.format(0), greedy.auth) + chunks, 4000)


def half_bodies(greedy: Greedy) -> None:
    head = _head("/v1/topics/mine/messages", greedy.auth, "POST")
    greedy.keep(head + b"Content-Length: 8000000\r\n\r\n" + b"x" * 4_000_000, 200)


def half_bodies_in_chunks(greedy: Greedy) -> None:
    head = _head("/v1/topics/mine/messages", greedy.auth, "POST")
    chunks = b"1000\r\n" + b"x" * 4096 + b"\r\n"
    greedy.keep(head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks * 900, 200)


def idle_connections(greedy: Greedy) -> None:
    greedy.keep(b"G", 20_000)


def held_pulls(greedy: Greedy) -> None:
    queue = greedy.next_number() % 1024
    greedy.keep(_head(_PULL.format(queue), greedy.auth) + b"\r\n", 20_000)


def held_pulls_with_filters(greedy: Greedy) -> None:
    number = greedy.next_number()
    condition = " OR ".join(f"a{number}x{n} = '{n}'" for n in range(120))
    path = f"{_PULL.format(number % 1024)}&filter={quote(condition)}"
    greedy.keep(_head(path, greedy.auth) + b"\r\n", 20_000)


def held_polls_over_queues(greedy: Greedy) -> None:
    queues = ",".join(f"{queue}:0" for queue in range(1024))
    path = f"/v1/topics/mine/messages?offsets={queues}&wait_ms=60000"
    greedy.keep(_head(path, greedy.auth) + b"\r\n", 20_000)


def slow_readers_binary(greedy: Greedy) -> None:
    _fill_once(greedy)
    path = "/v1/topics/mine/queues/0/messages?from=earliest&max_messages=10000&max_bytes=8388608"
    greedy.keep(_head(path, greedy.auth) + b"Accept: " + _BATCH.encode() + b"\r\n\r\n", 3000)


def slow_readers_json(greedy: Greedy) -> None:
    _fill_once(greedy)
    path = "/v1/topics/mine/queues/0/messages?from=earliest&max_messages=10000&max_bytes=8388608"
    greedy.keep(_head(path, greedy.auth) + b"Accept: application/json\r\n\r\n", 3000)


def unread_event_streams(greedy: Greedy) -> None:
    if greedy.next_number() == 1:
        block = b"".join(encode_batch([b"x"] * 500, queue_id=queue) for queue in range(128))
        greedy.ask("POST", "/v1/topics/mine/messages", block, Content_Type=_BATCH)
    _stream_of_events(greedy, "&max_messages=10000")


def unread_event_streams_held(greedy: Greedy) -> None:
    if greedy.next_number() == 1:
        block = b"".join(encode_batch([b"x" * 1000], queue_id=queue) for queue in range(128))
        greedy.ask("POST", "/v1/topics/mine/messages", block, Content_Type=_BATCH)
    _stream_of_events(greedy, "")


def _stream_of_events(greedy: Greedy, bounds: str) -> None:
    queues = ",".join(f"{queue}:0" for queue in range(128))
    path = f"/v1/topics/mine/messages?offsets={queues}{bounds}"
    greedy.keep(_head(path, greedy.auth) + b"Accept: text/event-stream\r\n\r\n", 3000)


def _fill_once(greedy: Greedy) -> None:
    if greedy.next_number() == 1:
        _fill(greedy, [b"x" * 100] * 10_000)


def _fill(greedy: Greedy, bodies: list[bytes]) -> None:
    block = encode_batch(bodies, queue_id=0)
    for _ in range(8):
        greedy.ask("POST", "/v1/topics/mine/messages", block, Content_Type=_BATCH)


def large_json(greedy: Greedy) -> None:
    one = b'{"body":"x","properties":{' + b",".join(
        b'"%03d":"%d"' % (n, n % 10) for n in range(500)
    ) + b"}},"  # fmt: skip
    body = b'{"messages":[' + (one * (7 * MIB // len(one)))[:-1] + b"]}"
    _many(greedy, lambda: greedy.ask("POST", "/v1/topics/mine/messages", body,
                                     Content_Type="application/json"))  # fmt: skip


def large_binary(greedy: Greedy) -> None:
    body = encode_batch([b"x" * 1000] * 4000, queue_id=0) * 3
    _many(greedy, lambda: greedy.ask("POST", "/v1/topics/mine/messages", body,
                                     Content_Type=_BATCH))  # fmt: skip


def gzip_bombs(greedy: Greedy) -> None:
    bomb = zlib.compress(bytes(8_000_000), 9, 31)
    _many(greedy, lambda: greedy.ask("POST", "/v1/topics/mine/messages", bomb,
                                     Content_Encoding="gzip"))  # fmt: skip


def new_producers(greedy: Greedy) -> None:
    first = greedy.next_number() * 2000
    body = b"".join(
        encode_batch([b"x"], queue_id=0, producer_id=first + n, sequence=0) for n in range(1, 2000)
    )
    greedy.ask("POST", "/v1/topics/mine/messages", body, Content_Type=_BATCH)


def new_topics(greedy: Greedy) -> None:
    greedy.ask("POST", f"/v1/topics/mine{greedy.next_number()}/messages", b"x")


def new_stored_groups(greedy: Greedy) -> None:
    body = json.dumps({"offsets": {str(queue): 0 for queue in range(1024)}}).encode()
    path = f"/v1/groups/mine{greedy.next_number()}/topics/mine/offsets"
    greedy.ask("PUT", path, body, Content_Type="application/json")


def new_groups(greedy: Greedy) -> None:
    greedy.ask("PUT", f"/v1/groups/mine{greedy.next_number()}", b'{"topics":{"mine":{}}}',
               Content_Type="application/json")  # fmt: skip


def groups_over_wide_topics(greedy: Greedy) -> None:
    greedy.ask("PUT", f"/v1/groups/mine{greedy.next_number()}", b'{"topics":{"wide":{}}}',
               Content_Type="application/json")  # fmt: skip


def groups_with_long_filters(greedy: Greedy) -> None:
    number = greedy.next_number()
    condition = " OR ".join(f"a{number}x{n} = '{n}'" for n in range(120))
    topics = {f"wide{n}": {"filter": f"{condition} OR b = {n}"} for n in range(24)}
    body = json.dumps({"topics": topics}).encode()
    greedy.ask("PUT", f"/v1/groups/mine{number}", body, Content_Type="application/json")


def new_members(greedy: Greedy) -> None:
    if greedy.next_number() == 1:
        greedy.ask("PUT", "/v1/groups/mine", b'{"topics":{"mine":{}}}',
                   Content_Type="application/json")  # fmt: skip
    ask = {"member": f"m{greedy.next_number()}" + "x" * 100, "wait_ms": 60_000}
    body = json.dumps(ask).encode()
    head = _head("/v1/groups/mine/receive", greedy.auth, "POST")
    typed = b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    greedy.keep(head + typed + body, 20_000)


def _group_over_many_messages(greedy: Greedy) -> str:
    """Create a group that may lease 100,000 messages of the topic; return its path."""
    number = greedy.next_number()
    if number == 1:
        _fill(greedy, [b"x"] * 50_000)
    path = f"/v1/groups/mine{number}"
    body = b'{"topics":{"mine":{}},"max_in_flight":100000}'
    greedy.ask("PUT", path, body, Content_Type="application/json")
    return path


def leases_of_many_groups(greedy: Greedy) -> None:
    path = _group_over_many_messages(greedy)
    for _ in range(10):
        greedy.ask("POST", f"{path}/receive", b'{"max_messages":10000,"lease_ms":40000000}',
                   Content_Type="application/json")  # fmt: skip


def messages_nacked_with_a_delay(greedy: Greedy) -> None:
    path = _group_over_many_messages(greedy)
    while time.monotonic() < greedy.until_s:
        said = greedy.ask("POST", f"{path}/receive", b'{"max_messages":10000,"wait_ms":1}',
                          Content_Type="application/json")  # fmt: skip
        receipts = [each["receipt"] for each in json.loads(said or b"{}").get("messages", ())]
        if not receipts:
            break
        nack = {"receipts": receipts, "delay_ms": 600_000_000}
        greedy.ask("POST", f"{path}/nack", json.dumps(nack).encode(),
                   Content_Type="application/json")  # fmt: skip


def new_attempts(greedy: Greedy) -> None:
    if greedy.next_number() == 1:
        greedy.ask("PUT", "/v1/groups/mine", b'{"topics":{"mine":{}}}',
                   Content_Type="application/json")  # fmt: skip
    number = greedy.next_number()
    for verb in ({"attempt_id": f"{number}" + "x" * 100}, {"browse": True}):
        ask = {"member": f"m{number}" + "x" * 100, **verb}
        greedy.ask("POST", "/v1/groups/mine/receive", json.dumps(ask).encode(),
                   Content_Type="application/json")  # fmt: skip


def read_leases(greedy: Greedy) -> None:
    if greedy.next_number() == 1:
        body = b"".join(encode_batch([b"x"], queue_id=queue) for queue in range(1024))
        greedy.ask("POST", "/v1/topics/mine/messages", body, Content_Type=_BATCH)
    greedy.ask("GET", "/v1/topics/mine/splits?lease_ms=3600000")


def queries_that_differ(greedy: Greedy) -> None:
    number = greedy.next_number()
    greedy.ask("GET", f"/v1/topics/mine/queues/0/messages?offset=0&tag={number}{'x' * 200}")


def _many(greedy: Greedy, ask: Callable[[], object], count: int = 8) -> None:
    def run() -> None:
        while time.monotonic() < greedy.until_s:
            with contextlib.suppress(OSError, http.client.HTTPException):
                ask()

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


ROWS: dict[str, Callable[[Greedy], None]] = {
    row.__name__.replace("_", " "): row
    for row in (
        unfinished_heads, unfinished_wide_heads, unfinished_small_headers, waiting_heads,
        waiting_small_headers, held_with_wide_heads, held_with_bodies, held_with_chunks,
        half_bodies, half_bodies_in_chunks, idle_connections, held_pulls,
        held_pulls_with_filters, held_polls_over_queues, slow_readers_binary, slow_readers_json,
        unread_event_streams, unread_event_streams_held,
        large_json, large_binary, gzip_bombs, new_producers, new_topics, new_stored_groups,
        new_groups, groups_over_wide_topics, groups_with_long_filters, new_members,
        leases_of_many_groups, messages_nacked_with_a_delay, new_attempts,
        read_leases, queries_that_differ,
    )
}  # fmt: skip


if __name__ == "__main__":
    main()
