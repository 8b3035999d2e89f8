"""The broker's processor time for each kind of request that clients repeat most.

    python -m bench.hot_requests [--json] [--requests 4000] [--rounds 10] [--beside CHECKOUT]
                                 [--only WORDS]

Each of 16 connections sends requests in a closed loop: publishes, pulls that find messages in
memory, pulls that find none, receives from a group, and acknowledgements of what was received. The
requests are encoded before each round, and the answers are hardly parsed. A woken request is held
on one connection, and a publish on another connection wakes it; with an ack, it acknowledges the
message of the request before it. With `--beside`, a broker
of another checkout takes turns with this one, and the ratios of this checkout to the other are
printed, too. The first round does not count.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import uvloop

from bench.harness import ARGUMENTS, process_cpu_s
from bench.hold_http import Client, Connection, put_topic
from bench.rows import TIMES, Row, report
from holdfast.running_broker import RunningBroker

CONNECTIONS = 16
_BODY_BYTES = 200
_UNIT = "broker us"
#: With -P, Python imports the checkout that PYTHONPATH names, not the present directory.
_PROGRAM = (sys.executable, "-P", "-m", "holdfast")
_KINDS = ("publish", "pull of 1", "pull of 32", "pull of 32, binary", "empty pull", "receive of 1",
          "ack of 1", "woken pull", "woken receive", "woken receive with ack")  # fmt: skip
#: The wait before a publish, so that the broker holds the request that it wakes.
_PARKING_S = 0.002


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__ or "")
    parser.add_argument("--json", action="store_true", help="JSON lines in place of a table")
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--beside", type=Path)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    kinds = [kind for kind in _KINDS if options.only in kind]
    found = uvloop.run(_measure(options.requests, options.rounds, options.beside, kinds))
    report(found, as_json=options.json)


async def _measure(
    requests: int, rounds: int, beside: Path | None, kinds: list[str]
) -> Iterator[Row]:
    with ExitStack() as stack:
        loads = [await _start(stack, checkout) for checkout in filter(None, (Path(), beside))]
        spent: dict[str, list[list[float]]] = {kind: [] for kind in kinds}
        for number in range(rounds + 1):
            order = loads if number % 2 else loads[::-1]
            for kind in kinds:
                values = {id(load): await load.run(kind, requests) for load in order}
                if number:
                    spent[kind].append([values[id(load)] for load in loads])
    return _rows(spent, beside is not None)


def _rows(spent: dict[str, list[list[float]]], has_other: bool) -> Iterator[Row]:
    for kind, rounds in spent.items():
        yield Row("", kind, "-", _UNIT, [each[0] for each in rounds])
        if has_other:
            yield Row("", f"{kind}, the other", "-", _UNIT, [each[1] for each in rounds])
            yield Row("", f"{kind}, beside the other", "-", TIMES, [a / b for a, b in rounds])


async def _start(stack: ExitStack, checkout: Path) -> "_Load":
    """Run a broker of a checkout, and return the load for it."""
    load = _Load(stack.enter_context(broker_of(checkout)))
    await load.prepare()
    return load


@contextmanager
def broker_of(checkout: Path) -> Iterator[RunningBroker]:
    """Run a broker of a checkout on a temporary directory and a free port."""
    before = os.environ.get("PYTHONPATH")
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-bench-"))
        os.environ["PYTHONPATH"] = str(checkout.resolve())
        try:
            data = Path(directory) / "data"
            running = stack.enter_context(RunningBroker(data, ARGUMENTS, program=_PROGRAM))
        finally:
            del os.environ["PYTHONPATH"]
            if before is not None:
                os.environ["PYTHONPATH"] = before
        yield running


class _Load:
    """Sends requests to one broker."""

    def __init__(self, running: RunningBroker) -> None:
        self._pid = running.pid
        self._url = running.url
        self._client = Client(running.url)
        self._connections: list[Connection] = []
        self._receipts: deque[str] = deque()
        self._pulled = 0

    async def prepare(self) -> None:
        """Fill a topic, and make a group."""
        for topic in ("published", "one", "many", "received", "pulled", "woken"):
            put_topic(self._url, topic, 1, "written")
        self._connections = [
            await self._client.connect(lambda _, now: None) for _ in range(CONNECTIONS)
        ]
        for name in ("received", "woken"):
            group = {"topics": {name: {}}, "start": "earliest", "max_in_flight": 100_000}
            put = self._client.post(f"/v1/groups/{name}", group).replace(b"POST", b"PUT", 1)
            await self._send([put])
        await self._send([self._publish("one", 1), self._publish("many", 32)])

    async def run(self, kind: str, requests: int) -> float:
        """Return the broker's processor time of a request, in microseconds; of a woken request
        together with the publish that wakes it."""
        if kind.startswith("woken"):
            before_s = process_cpu_s(self._pid)
            await self._wake(kind, requests)
            return (process_cpu_s(self._pid) - before_s) / requests * 1e6
        if kind == "receive of 1":
            await self._send([self._publish("received", 1)] * requests)
        elif kind == "ack of 1" and len(self._receipts) < requests:
            await self.run("receive of 1", requests)
        asked = self._requests(kind, requests)
        keep = self._keep if kind == "receive of 1" else None
        before_s = process_cpu_s(self._pid)
        await self._send(asked, keep)
        return (process_cpu_s(self._pid) - before_s) / len(asked) * 1e6

    async def _wake(self, kind: str, count: int) -> None:
        """Hold requests one after another, and wake each with a publish."""
        client, body = self._client, b""
        for _ in range(count):
            if kind == "woken pull":
                path = f"/v1/topics/pulled/queues/0/messages?offset={self._pulled}&wait_ms=60000"
                held, topic = client.get(path), "pulled"
                self._pulled += 1
            else:
                asked: dict[str, object] = {"max_messages": 1, "wait_ms": 60_000}
                if body and kind.endswith("ack"):
                    receipts = [each["receipt"] for each in json.loads(body)["messages"]]
                    asked["settle"] = [{"verb": "ack", "receipts": receipts}]
                held, topic = client.post("/v1/groups/woken/receive", asked), "woken"
            waiting, acting = self._connections[:2]
            answers = [_answer(waiting), _answer(acting)]
            waiting.send(held)
            await asyncio.sleep(_PARKING_S)
            acting.send(self._publish(topic, 1))
            await asyncio.gather(*answers)
            body = waiting.body

    def _keep(self, body: bytes) -> None:
        self._receipts += [each["receipt"] for each in json.loads(body)["messages"]]

    def _requests(self, kind: str, count: int) -> list[bytes]:
        client = self._client
        if kind == "publish":
            return [self._publish("published", 1)] * count
        if kind == "receive of 1":
            return [client.post("/v1/groups/received/receive", {"max_messages": 1})] * count
        if kind == "ack of 1":
            receipts = [self._receipts.popleft() for _ in range(min(count, len(self._receipts)))]
            return [
                client.post("/v1/groups/received/ack", {"receipts": [each]}) for each in receipts
            ]
        topic, offset = ("one", 0) if kind == "pull of 1" else ("many", 0)
        if kind == "empty pull":
            offset = 32
        pull = client.get(f"/v1/topics/{topic}/queues/0/messages?offset={offset}")
        if "binary" in kind:
            pull = pull.replace(b"Accept: */*", b"Accept: application/vnd.holdfast.batch")
        return [pull] * count

    def _publish(self, topic: str, messages: int) -> bytes:
        body = {"messages": [{"body": "x" * _BODY_BYTES}] * messages}
        return self._client.post(f"/v1/topics/{topic}/messages", body)

    async def _send(
        self, requests: list[bytes], keep: Callable[[bytes], None] | None = None
    ) -> None:
        """Send the requests over all connections, and wait for all answers."""
        left, sent = len(requests), iter(requests)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def answered(connection: Connection, _: float) -> None:
            nonlocal left
            assert connection.status in (200, 201), connection.body
            if keep is not None:
                keep(connection.body)
            left -= 1
            if (request := next(sent, None)) is not None:
                connection.send(request)
            elif left == 0:
                done.set_result(None)

        for connection in self._connections:
            connection.answered = answered
            if (request := next(sent, None)) is not None:
                connection.send(request)
        await done


def _answer(connection: Connection) -> "asyncio.Future[None]":
    answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    connection.answered = lambda _, now: answer.set_result(None)
    return answer


if __name__ == "__main__":
    main()
