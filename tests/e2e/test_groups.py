"""Groups from end to end: real input, a killed member, modes, levels, delays."""

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from random import Random
from time import monotonic, sleep

import pytest

from holdfast.client import Client, Delivery
from holdfast.client.read.message import Message
from holdfast.client.values import Mode
from holdfast.testing import RunningBroker
from tests.cli.conftest import commands_against
from tests.support.storage.access_log import key_and_tag, read_lines


@pytest.fixture
def client(broker: RunningBroker) -> Iterator[Client]:
    with broker.client() as client:
        yield client


def until(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    deadline = monotonic() + timeout_s
    while not condition():
        assert monotonic() < deadline, "it did not happen in time"
        sleep(0.01)


def no_letter_is_on_its_way(client: Client, group: str) -> bool:
    return bool(client.describe_group(group)["dying"] == 0)


def end_offset(client: Client, topic: str) -> int:
    return sum(queue["max_offset"] for queue in client.describe_topic(topic)["queues"])


# -- the access log --------------------------------------------------------------------------


def test_the_errors_of_an_access_log(broker: RunningBroker, client: Client) -> None:
    lines = read_lines()
    client.create_topic("access", queues=4)
    with client.producer("access") as producer:
        for line in lines:
            key, tag = key_and_tag(line)
            producer.send(line, key=key, tag=tag)
    client.create_group(
        "alerts", {"access": {"filter": "404,500"}}, dead_letter_topic="alerts.dead"
    )
    client.create_group("everything", "access")

    alerts: list[tuple[str | None, bytes]] = []
    lock = threading.Lock()

    def alert(delivery: Delivery) -> None:
        with lock:
            alerts.append((delivery.tag, delivery.body))
        if delivery.tag == "500":
            delivery.reject()

    client.consume("access", "alerts", concurrency=4, follow=False).run(alert)
    assert Counter(tag for tag, _ in alerts) == {"404": 213, "500": 3}
    with client.consume("access", "everything", max_in_flight=1000, follow=False) as deliveries:
        everything = [delivery.body for delivery in deliveries]
    assert Counter(everything) == Counter(lines)
    assert len(everything) == 10_000

    until(lambda: no_letter_is_on_its_way(client, "alerts"))
    assert end_offset(client, "alerts.dead") == 3
    holdfast = commands_against(broker.url)
    shown = holdfast(
        "group", "redrive", "alerts", "--dry-run", "--format", "json"
    ).stdout.splitlines()
    rejected = sorted(body for tag, body in alerts if tag == "500")
    assert sorted(json.loads(line)["body"].encode() for line in shown) == rejected
    assert end_offset(client, "access") == 10_000
    assert json.loads(holdfast("group", "redrive", "alerts", "--max", "1").stdout) == {
        "group": "alerts",
        "redriven": 1,
        "dead_letter_topic": "alerts.dead",
        "topics": {"access": 1},
        "stuck": 0,
    }
    assert json.loads(holdfast("group", "redrive", "alerts").stdout)["redriven"] == 2
    assert json.loads(holdfast("group", "redrive", "alerts").stdout)["redriven"] == 0
    assert holdfast("group", "redrive", "alerts", "--dry-run").stdout == ""

    with client.consume("access", "alerts", follow=False) as deliveries:
        again = list(deliveries)
    assert sorted(delivery.body for delivery in again) == rejected
    for delivery in again:
        assert (delivery.key, delivery.tag) == key_and_tag(delivery.body)
        assert delivery.properties == {}


# -- dead letters ----------------------------------------------------------------------------


def dead_letters(client: Client, topic: str, *keys: str | None) -> list[Message]:
    """Create a group, let it reject a message of each key, and return the dead letters."""
    client.create_topic(topic, queues=3)
    for number, key in enumerate(keys):
        queue = 2 if key is None else None
        client.publish(topic, f"{number}", key=key, tag="t", properties={"a": "b"}, queue=queue)
    client.create_group(topic, topic, dead_letter_topic=f"{topic}.dead")
    with client.consume(topic, topic, follow=False) as deliveries:
        for delivery in deliveries:
            delivery.reject()
    until(lambda: no_letter_is_on_its_way(client, topic))
    return list(client.pull(f"{topic}.dead", follow=False))


def test_many_letters_go_back_in_the_order_of_their_keys(client: Client) -> None:
    keys = [None if number % 7 == 0 else f"k{number % 5}" for number in range(300)]
    letters = dead_letters(client, "many", *keys)
    assert client.redrive("many").total == 300
    messages = list(client.pull("many", follow=False))
    for key in {*keys}:
        expected = [each.body for each in letters if each.key == key]
        found = [each.body for each in messages if each.key == key]
        assert found[len(expected) :] == expected, key


# -- a member that is killed -----------------------------------------------------------------

_MEMBER = """
import sys, time
from holdfast import Client
url, name, lease_ms, sticks_at = *sys.argv[1:3], *map(int, sys.argv[3:])
with Client(url) as client:
    with client.consume("shared", "shared", member=name, lease_ms=lease_ms) as deliveries:
        for count, delivery in enumerate(deliveries, 1):
            print(delivery.queue, delivery.offset, int(delivery.redelivered), flush=True)
            time.sleep(3600 if count == sticks_at else 0.002)
"""


class Member:
    """A member in a process of its own, and the messages that it received.

    It works on the message with number `sticks_at` until it is killed.
    """

    def __init__(self, url: str, name: str, *, lease_ms: int = 60_000, sticks_at: int = 0) -> None:
        self.given: list[tuple[int, int, bool]] = []
        self.process = subprocess.Popen(
            [sys.executable, "-c", _MEMBER, url, name, str(lease_ms), str(sticks_at)],
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reading = threading.Thread(target=self._read)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            queue, offset, redelivered = map(int, line.split())
            self.given.append((queue, offset, bool(redelivered)))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reading.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


def test_a_killed_members_messages_come_back_in_their_places(
    broker: RunningBroker, client: Client
) -> None:
    client.create_topic("shared", queues=4)
    client.create_group("shared", "shared")
    with client.producer("shared") as producer:
        for number in range(1000):
            producer.send(b"%d" % number, queue=number % 4)
    # Only the victim's leases end soon: the other members keep theirs even on a slow machine. The
    # victim extends its leases at half their time, so it may be stopped for the other half.
    victim = Member(broker.url, "victim", lease_ms=6500, sticks_at=20)
    members = [victim]
    try:
        until(lambda: len(victim.given) == 20)
        victim.kill()
        members += [Member(broker.url, f"member-{number}") for number in range(4)]
        everything = {(n % 4, n // 4) for n in range(1000)}

        def seen() -> set[tuple[int, int]]:
            return {each[:2] for member in members for each in list(member.given)}

        until(lambda: seen() == everything)
        until(lambda: client.describe_group("shared")["lag_messages"] == 0)
    finally:
        for member in members:
            member.kill()
    times = Counter(each[:2] for member in members for each in member.given)
    twice = {place for place, count in times.items() if count > 1}
    assert max(times.values()) <= 2
    # Only the messages that the victim had received and not settled.
    assert twice <= {each[:2] for each in victim.given[-64:]}
    assert len(victim.given) == 20
    for member in members[1:]:
        back: dict[int, list[int]] = defaultdict(list)
        for queue, offset, redelivered in member.given:
            if redelivered:
                back[queue].append(offset)
        assert all(offsets == sorted(offsets) for offsets in back.values())


# -- modes -----------------------------------------------------------------------------------


async def test_order_per_key_holds_through_failures_and_members_that_come_and_go(
    broker: RunningBroker,
) -> None:
    # I11
    rng = Random(int(os.environ.get("TEST_SEED", "20261121")))
    done: dict[str | None, list[int]] = defaultdict(list)
    async with broker.async_client() as client:
        await client.create_topic("keys", queues=3)
        async with client.producer("keys") as producer:
            for number in range(600):
                producer.send(b"%d" % number, key=f"key-{number % 20}")
        await client.create_group("keyed", "keys", mode="keyed", max_attempts=0)

        async def come_and_go() -> None:
            consumer = client.consume(
                "keys", "keyed", concurrency=4, max_in_flight=24, follow=False
            )
            stays_for = rng.randrange(20, 80)

            async def handle(delivery: Delivery) -> None:
                nonlocal stays_for
                stays_for -= 1
                if not stays_for:
                    consumer.stop()
                await asyncio.sleep(0)
                if rng.random() < 0.1:
                    await delivery.nack(0)
                elif rng.random() < 0.05:
                    await delivery.release()
                else:
                    done[delivery.key].append(int(delivery.body))
                    assert await delivery.ack() == "done"

            await consumer.run(handle)

        async with asyncio.timeout(60):
            while (await client.describe_group("keyed"))["lag_messages"]:
                await asyncio.gather(*(come_and_go() for _ in range(3)))
    assert done == {f"key-{key}": list(range(key, 600, 20)) for key in range(20)}


async def test_a_single_active_member_hands_over_when_it_goes(broker: RunningBroker) -> None:
    # A33
    async with broker.async_client() as client, asyncio.timeout(60):
        await client.create_topic("lone", queues=1)
        for number in range(4):
            await client.publish("lone", f"{number}")
        await client.create_group("lone", "lone", mode="single_active")
        first = client.consume("lone", "lone")
        second = client.consume("lone", "lone", wait_ms=1000)
        assert (await anext(first)).body == b"0"
        waiting = asyncio.create_task(second.next())
        while second.is_active:
            await asyncio.sleep(0.01)
        assert (await anext(first)).body == b"1"
        assert not waiting.done()
        await first.close()
        delivery = await waiting
        assert delivery is not None
        assert (delivery.body, second.is_active) == (b"1", True)
        await second.close()


async def test_a_late_high_message_overtakes_what_the_client_does_not_hold(
    broker: RunningBroker,
) -> None:  # Q23
    async with broker.async_client() as client, asyncio.timeout(60):
        await client.create_topic("levels", queues=1, priority_levels=10)
        await client.create_group("of-levels", "levels")
        for body in ("4a", "4b", "4c"):
            await client.publish("levels", body, priority=4)
        got: list[str] = []
        async with client.consume(
            "levels", "of-levels", max_in_flight=1, follow=False
        ) as deliveries:
            async for delivery in deliveries:
                got.append(delivery.body.decode())
                if got == ["4a"]:
                    await client.publish("levels", "9a", priority=9)
                if got == ["4a", "9a", "4b"]:
                    await client.publish("levels", "9b", priority=9)
                    await delivery.nack(0)
        # A failed message returns to its own priority level, after all messages of higher levels.
        assert got == ["4a", "9a", "4b", "9b", "4b", "4c"]


@pytest.mark.parametrize("mode", ["competing", "keyed"])
def test_consuming_to_the_end_may_wait_for_delayed_messages(client: Client, mode: Mode) -> None:
    # C6: the consumer ended while a failed message waited for its back-off
    topic, group = f"delayed-{mode}", f"delays-{mode}"
    client.create_topic(topic, queues=1)
    client.create_group(group, topic, mode=mode, backoff_ms=[300])
    for number in range(3):
        client.publish(topic, str(number), key="k")
    handled: list[tuple[bytes, int]] = []

    def handle(delivery: Delivery) -> None:
        handled.append((delivery.body, delivery.attempt))
        if delivery.attempt < 3 and delivery.body == b"0":
            raise ValueError("not yet")

    client.consume(topic, group, follow=False, wait_for_delayed=True).run(handle)
    assert [attempt for body, attempt in handled if body == b"0"] == [1, 2, 3]
    assert {body for body, _ in handled} == {b"0", b"1", b"2"}
    assert (
        sum(queue["lag_messages"] for queue in client.describe_group(group)["topics"][0]["queues"])
        == 0
    )
