"""Groups beside plain pulls: the wake of a held receive, and publishes beside idle groups.

    python -m bench.group_wake [--json] [--wakes 500] [--publishes 2000] [--groups 1000]
                               [--rounds 5]

There is one broker process, and one client process with plain sockets. A held pull and a held
receive wait on topics of their own. Each is woken `--wakes` times in a round, alternately. The time
is that from the publish to the answer; the acknowledgement of a received message does not count.
Publishes go one after another to a topic without groups, and to a topic with `--groups` groups in
which no member waits. The rounds of both topics alternate. Written mode.
"""

import asyncio
import json
import statistics
import time
from collections.abc import Iterator

import uvloop

from bench.harness import arguments, broker, process_cpu_s
from bench.hold_http import Client, Connection, put_topic
from bench.rows import TIMES, Row, report
from holdfast.running_broker import RunningBroker

DURABILITY = "written"
_WAKE_BAR, _IDLE_BAR = 1.3, 1.1
#: The wait before a publish, so that the broker holds the request.
_PARKING_S = 0.003


class Probe:
    """Two connections: one waits, one publishes and does the rest."""

    def __init__(self, client: Client, waiting: Connection, acting: Connection) -> None:
        self._client = client
        self._waiting = waiting
        self._acting = acting
        self._offset = 0

    async def wake_pull(self) -> float:
        """Return the milliseconds from a publish to the answer of the held pull."""
        path = f"/v1/topics/pulled/queues/0/messages?offset={self._offset}&wait_ms=60000"
        ms, answer = await self._wake(self._client.get(path), "pulled")
        self._offset = json.loads(answer)["next_offset"]
        return ms

    async def wake_receive(self) -> float:
        """Return the milliseconds from a publish to the answer of the held receive."""
        asked = {"member": "m", "max_messages": 1, "wait_ms": 60_000}
        request = self._client.post("/v1/groups/received/receive", asked)
        ms, answer = await self._wake(request, "received")
        receipts = [each["receipt"] for each in json.loads(answer)["messages"]]
        assert len(receipts) == 1
        await self.ask(self._client.post("/v1/groups/received/ack", {"receipts": receipts}))
        return ms

    async def publish(self, topic: str) -> float:
        """Publish one message; return the milliseconds until its answer."""
        started = time.perf_counter()
        return (await self._client.publish(self._acting, topic, 0) - started) * 1000

    async def ask(self, request: bytes) -> None:
        """Send a request, and wait for its answer."""
        answer = _answer(self._acting)
        self._acting.send(request)
        await answer
        assert self._acting.status in {200, 201}, self._acting.body

    async def _wake(self, request: bytes, topic: str) -> tuple[float, bytes]:
        answer = _answer(self._waiting)
        self._waiting.send(request)
        await asyncio.sleep(_PARKING_S)
        started = time.perf_counter()
        await self._client.publish(self._acting, topic, 0)
        at = await answer
        assert self._waiting.status == 200, self._waiting.body
        return (at - started) * 1000, self._waiting.body


def main() -> None:
    """Measure and print."""
    options = arguments(__doc__ or "", wakes=500, publishes=2000, groups=1000, rounds=5)
    with broker() as running:
        for topic in ("pulled", "received", "alone", "grouped"):
            put_topic(running.url, topic, 1, DURABILITY)
        found = uvloop.run(
            _rows(running, options.wakes, options.publishes, options.groups, options.rounds)
        )
    report(found, as_json=options.json)


async def _rows(
    running: RunningBroker, wakes: int, publishes: int, groups: int, rounds: int
) -> list[Row]:
    client = Client(running.url)
    probe = Probe(client, *[await client.connect(lambda _, now: None) for _ in range(2)])
    put = client.post("/v1/groups/received", {"topics": {"received": {}}}).replace(
        b"POST", b"PUT", 1
    )
    await probe.ask(put)
    for number in range(groups):
        fields: dict[str, object] = {"topics": {"grouped": {}}}
        put = client.post(f"/v1/groups/idle{number}", fields).replace(b"POST", b"PUT", 1)
        await probe.ask(put)
    return [
        *await _wakes(probe, wakes, rounds),
        *await _publishes(probe, running.pid, publishes, groups, rounds),
    ]


async def _wakes(probe: Probe, wakes: int, rounds: int) -> Iterator[Row]:
    pull = Row("", "wake of a held pull, p50", DURABILITY, "ms", [])
    receive = Row("", "wake of a held receive, p50", DURABILITY, "ms", [])
    for number in range(rounds + 1):
        pulls, receives = [], []
        for _ in range(wakes):
            pulls.append(await probe.wake_pull())
            receives.append(await probe.wake_receive())
        if number:
            pull.values.append(statistics.median(pulls))
            receive.values.append(statistics.median(receives))
    ratio = Row("", "wake of a held receive beside a held pull", DURABILITY, TIMES, [])
    ratio.values = [ours / base for ours, base in zip(receive.values, pull.values, strict=True)]
    ratio.at_most = _WAKE_BAR
    return iter((pull, receive, ratio))


async def _publishes(
    probe: Probe, pid: int, publishes: int, groups: int, rounds: int
) -> Iterator[Row]:
    names = {"alone": "no groups", "grouped": f"{groups:,} idle groups"}
    p50 = {
        each: Row("", f"publish, {name}, p50", DURABILITY, "ms", []) for each, name in names.items()
    }
    spent = {
        each: Row("", f"publish, {name}, broker", DURABILITY, "us", [])
        for each, name in names.items()
    }
    for number in range(rounds + 1):
        for topic in names:
            before = process_cpu_s(pid)
            took = [await probe.publish(topic) for _ in range(publishes)]
            if number:
                spent[topic].values.append((process_cpu_s(pid) - before) / publishes * 1e6)
                p50[topic].values.append(statistics.median(took))
    found = []
    for what, of in (("p50", p50), ("broker's processor time", spent)):
        pairs = zip(of["grouped"].values, of["alone"].values, strict=True)
        ratio = Row("", f"publish, {names['grouped']} beside none, {what}", DURABILITY, TIMES, [])
        ratio.values, ratio.at_most = [more / none for more, none in pairs], _IDLE_BAR
        found += [*of.values(), ratio]
    return iter(found)


def _answer(connection: Connection) -> "asyncio.Future[float]":
    answer: asyncio.Future[float] = asyncio.get_running_loop().create_future()
    connection.answered = lambda _, now: answer.set_result(now)
    return answer


if __name__ == "__main__":
    main()
