"""Groups with leases over brokers that are killed or lose power: old receipts settle, no leased
message is redelivered early, nothing is lost. TEST_KILLS (default 12) sets the kills, TEST_SEED the
seed."""

import os
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Self

import pytest

from holdfast.client.errors import UnknownTopic
from holdfast.running_broker import RunningBroker
from tests.crash.restart_campaign import run as run_restarts
from tests.support.clients.broker_calls import Calls, wait_until
from tests.support.damage.loop_volume import LoopVolume
from tests.support.event_loop.gate import Gate, GateClient
from tests.support.histories.group_history import (
    Delivery,
    GroupHistory,
    Place,
    check_group,
    check_letters,
)
from tests.support.histories.group_members import (
    Habits,
    Member,
    Seeker,
    deliveries_of,
    letters_of,
    settle_calls_of,
)
from tests.support.histories.history import HistoryViolation, Record, check_history
from tests.support.histories.workload_clients import LoadTopic, Publisher
from tests.support.storage.sound import assert_sound

pytestmark = [pytest.mark.crash, pytest.mark.timeout(600)]

KILLS = int(os.environ.get("TEST_KILLS", "12"))
SEED = int(os.environ.get("TEST_SEED", "20261121"))
TOPIC = "work"
GROUP = "workers"
DEAD_LETTERS = "work.dead"
QUEUES = 4
LEASE_MS = 4000
HOLDFAST = (sys.executable, "-m", "holdfast")
ARGUMENTS = ("--commitlog-segment-bytes", "1MiB")


class Scene:
    """A broker with a topic of 1,000 messages, a group on it, and the replies to its members."""

    def __init__(
        self, broker: RunningBroker, messages: int = 1000, keys: int = 50, **settings: object
    ) -> None:
        self.broker = broker
        self.history = GroupHistory()
        self.calls = Calls(broker.url)
        with broker.client() as client:
            client.create_topic(TOPIC, queues=QUEUES)
            with client.producer(TOPIC) as producer:
                for number in range(messages):
                    producer.send(f"message {number}", key=f"key-{number % keys}")
        subscription = {"topics": {TOPIC: {}}, "lease_ms": LEASE_MS, **settings}
        answer = self.calls("PUT", f"/v1/groups/{GROUP}", subscription)
        assert answer.status == 201, answer

    def receive(self, member: str, most: int, *, wait_ms: int = 0) -> list[Delivery]:
        """Receive once, with leases of LEASE_MS."""
        ask = {"member": member, "max_messages": most, "lease_ms": LEASE_MS, "wait_ms": wait_ms}
        sent_at = time.monotonic()
        answer = self.calls("POST", f"/v1/groups/{GROUP}/receive", ask)
        assert answer.status == 200, answer
        found = deliveries_of(member, answer, sent_at, LEASE_MS)
        self.history.record_deliveries(found)
        return found

    def receive_all(self, member: str) -> list[Delivery]:
        """Receive until a reply is empty."""
        found: list[Delivery] = []
        while more := self.receive(member, 1000):
            found += more
        return found

    def settle(self, verb: str, deliveries: list[Delivery], **terms: object) -> set[str]:
        """Settle the deliveries and return the set of statuses in the reply."""
        sent_at = time.monotonic()
        body = {"receipts": [each.receipt for each in deliveries], **terms}
        answer = self.calls("POST", f"/v1/groups/{GROUP}/{verb}", body)
        assert answer.status == 200, answer
        words = settle_calls_of(verb, deliveries, sent_at, answer)
        self.history.record_settle_calls(words)
        return {each.status for each in words}

    def drain(self, member: str, count: int) -> list[Delivery]:
        """Receive and acknowledge until `count` messages are settled."""
        drained: list[Delivery] = []
        deadline = time.monotonic() + 60
        while len(self.history.settled) < count:
            assert time.monotonic() < deadline, f"{len(self.history.settled)} of {count}"
            if found := self.receive(member, 500, wait_ms=1000):
                assert self.settle("ack", found) <= {"done", "stale"}
                drained += found
        assert not self.receive(member, 500)
        return drained

    def letters(self) -> list[Place]:
        """Wait until no dead letter is pending; return the places of the original messages."""
        path = f"/v1/groups/{GROUP}"
        wait_until(lambda: self.calls("GET", path).json["dying"] == 0, "all letters are there")
        with self.broker.client() as client, suppress(UnknownTopic):
            return letters_of(client.pull(DEAD_LETTERS, follow=False))
        return []

    def stored(self, topic: str = TOPIC) -> list[Record]:
        """Return all messages of the topic."""
        return list(everything(self.broker, topic))


def everything(broker: RunningBroker, topic: str) -> Iterator[Record]:
    with broker.client() as client:
        for message in client.pull(topic, follow=False):
            yield Record(message.queue, message.offset, message.key, message.body)


@contextmanager
def running(data_dir: Path, program: Sequence[str] = HOLDFAST) -> Iterator[RunningBroker]:
    """Run a broker; at the end check that it stops cleanly and leaves a sound directory."""
    broker = RunningBroker(data_dir, ARGUMENTS, start_timeout_s=60, program=program)
    broker.start()
    try:
        yield broker
        assert broker.stop() == 0
        assert_sound(broker.data_dir)
    finally:
        broker.kill()


def places(deliveries: Iterable[Delivery]) -> set[tuple[int, int]]:
    return {each.place for each in deliveries}


class Crowd:
    """Threads that work on a scene while the block runs; the test raises their errors."""

    def __init__(self, scene: Scene, habits: Habits) -> None:
        self.gate = Gate()
        self._scene = scene
        self._habits = habits
        self._threads: list[GateClient] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.gate.end()

    def start(self, *threads: GateClient) -> None:
        """Start the threads."""
        self._threads += threads
        for thread in threads:
            thread.start()

    def joined(self) -> Member:
        """Start and return one more member."""
        name = f"member-{len(self._threads)}"
        url, history = self._scene.broker.url, self._scene.history
        member = Member(name, url, self.gate, GROUP, history, habits=self._habits, seed=SEED)
        self.start(member)
        return member

    def until_published(self, topic: LoadTopic, count: int) -> None:
        """Wait until `count` messages are acknowledged."""
        self._until(lambda: len(topic.history.acks) >= count, f"{count} are published")

    def until_all_said(self, topic: LoadTopic) -> None:
        """Wait until every message that was sent is acknowledged."""
        self._until(lambda: len(topic.history.acks) == len(topic.history.sends), "all is stored")

    def until_settled(self, count: int) -> None:
        """Wait until `count` messages are settled."""
        history = self._scene.history
        self._until(lambda: len(history.settled) >= count, f"{count} are settled")

    def until_drained(self) -> None:
        """Wait until the broker reports no lag and every reply is recorded."""
        calls = self._scene.calls
        path = f"/v1/groups/{GROUP}"
        self._until(lambda: calls("GET", path).json["lag_messages"] == 0, "all is settled")
        self.gate.pause()

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        def holds() -> bool:
            for thread in self._threads:
                if thread.error is not None:
                    raise thread.error
            return condition()

        wait_until(holds, what, timeout_s=300)


@pytest.mark.parametrize("crashed", ["members", "broker"])
def test_after_a_crash_only_deliveries_that_were_not_settled_are_repeated(
    tmp_path: Path, crashed: str
) -> None:
    # T22: two members get their replies and crash; only one of them had to settle its messages
    with running(tmp_path / "data") as broker:
        scene = Scene(broker, messages=30)

        def receive(member: str, most: int, **more: object) -> dict[str, tuple[int, bool]]:
            """Return the attempt and the flag of each received message."""
            asked = {"member": member, "max_messages": most, "lease_ms": LEASE_MS, **more}
            messages = scene.calls("POST", f"/v1/groups/{GROUP}/receive", asked).json["messages"]
            return {each["body"]: (each["attempt"], each["redelivered"]) for each in messages}

        explicit = receive("explicit", 10)
        automatic = receive("automatic", 10, settled=True)
        assert [*(explicit | automatic).values()] == [(1, False)] * 20
        if crashed == "broker":
            broker.kill()
            broker.start()
        found: dict[str, tuple[int, bool]] = {}
        deadline = time.monotonic() + 60
        while len(found) < 20:
            assert time.monotonic() < deadline, found
            # settled on the way out: no lease of this member can end before the last line
            found |= receive("next", 30, wait_ms=1_000, settled=True)
        assert {body for body, seen in found.items() if seen == (2, True)} == {*explicit}
        assert {body for body, seen in found.items() if seen == (1, False)}.isdisjoint(explicit)
        assert {*found} == {f"message {number}" for number in range(30)} - {*automatic}
        assert scene.calls("GET", f"/v1/groups/{GROUP}").json["available"] == 0


def test_500_leases_outlive_a_sigkill(tmp_path: Path) -> None:  # Q16, section 6.2
    with running(tmp_path / "data") as broker:
        scene = Scene(broker)
        leased = scene.receive("a", 500)
        assert len(leased) == 500
        done, held, lent = leased[:100], leased[100:300], leased[300:]
        assert scene.settle("ack", done) == {"done"}
        broker.kill()
        broker.start()
        # Messages that were never delivered arrive at once as first deliveries; the rest is leased.
        fresh = scene.receive_all("b")
        kept = [each for each in held if each.place not in places(fresh)]
        # otherwise the start took longer than the leases
        if fresh[-1].answered_at < leased[0].lease_end:
            assert (len(fresh), len(kept)) == (500, 200)
        assert not places(fresh) & places(done)
        first = [each for each in fresh if each.place not in places(held + lent)]
        assert (len(first), any(each.redelivered for each in first)) == (500, False)
        assert scene.settle("ack", kept + done) == {"done"}
        assert scene.settle("ack", kept + done) == {"done"}  # repeated
        assert scene.settle("ack", fresh) == {"done"}
        again = scene.drain("b", 1000)
        assert places(again) <= places(lent)
        assert all(each.redelivered for each in again)
        assert scene.settle("ack", lent) <= {"stale", "done"}
        check_group(scene.history, scene.stored())


@pytest.mark.fault
def test_leases_outlive_a_power_loss(volume: LoopVolume) -> None:
    """Messages that may be leased wait, because a power loss makes the page of leases invalid."""
    with running(volume.path) as broker:
        scene = Scene(broker)
        leased = scene.receive("a", 500)
        done, held = leased[:100], leased[100:300]
        assert scene.settle("ack", done) == {"done"}
        volume.lose_power(broker.kill)
        broker.start()
        assert scene.settle("ack", held) == {"done"}
        again = scene.drain("b", 1000)
        assert not places(again) & places(done + held)
        assert len(places(again)) == 700
        check_group(scene.history, scene.stored())


@pytest.mark.fault
def test_what_came_back_and_what_is_delayed_outlive_a_power_loss(volume: LoopVolume) -> None:
    """Released messages wait as if they were leased; delays and attempt counts continue."""
    with running(volume.path) as broker:
        scene = Scene(broker)
        leased = scene.receive("a", 500)
        released, delayed, held, lent = (leased[at : at + 100] for at in range(0, 400, 100))
        assert scene.settle("release", released) == {"done"}
        assert scene.settle("nack", delayed, delay_ms=600_000) == {"done"}
        volume.lose_power(broker.kill)
        broker.start()
        assert scene.settle("release", released) == {"done"}  # repeated
        assert scene.settle("nack", delayed, delay_ms=600_000) == {"done"}
        assert scene.settle("ack", held) == {"done"}
        again = scene.drain("b", 900)
        assert not places(again) & places(delayed + held)
        assert places(released + lent) <= places(again)
        for each in again:
            if each.place in places(released):
                assert each.attempt >= 2 and each.redelivered
        check_group(scene.history, scene.stored(), drained=False)


HABITS = Habits(ack=0.77, nack=0.05, release=0.05, reject=0.03, max_messages=20, lease_ms=1000)


def test_a_kill_under_members_loses_and_repeats_nothing(tmp_path: Path) -> None:
    _storm(tmp_path / "data", kills=1, messages=200, seed=SEED)


@pytest.mark.fault
def test_a_storm_of_kills_under_members_loses_and_repeats_nothing(tmp_path: Path) -> None:
    _storm(tmp_path / "data", kills=KILLS, messages=1000, seed=SEED)


@pytest.mark.fault
@pytest.mark.planted
@pytest.mark.parametrize(
    ("defect", "rule", "lease_ms"),
    [
        ("settle without commit", "risen", HABITS.lease_ms),
        # With short leases on a busy machine, the leases could end before the broker is up again,
        # which would hide that it forgot them.
        ("forget leases", "too-early", 6000),
    ],
)
def test_a_storm_refuses_a_planted_defect(
    tmp_path: Path, defect: str, rule: str, lease_ms: int
) -> None:
    program = (sys.executable, "-m", "tests.support.damage.defective_program", defect)
    with pytest.raises(HistoryViolation) as refused:
        habits = replace(HABITS, lease_ms=lease_ms)
        _storm(
            tmp_path / "data",
            kills=3,
            messages=300,
            seed=SEED,
            program=program,
            habits=habits,
            is_sent_back=False,  # a seek would be another cause of redeliveries
        )
    assert refused.value.rule == rule


def _storm(
    data_dir: Path,
    *,
    kills: int,
    messages: int,
    seed: int,
    program: Sequence[str] = HOLDFAST,
    habits: Habits = HABITS,
    is_sent_back: bool = True,
) -> None:
    """Run publishers and five members through kills; one member dies with each broker."""
    rng = random.Random(seed)
    topic = LoadTopic(TOPIC, QUEUES)
    with running(data_dir, program) as broker:
        scene = Scene(
            broker, messages=0, backoff_ms=[0], max_attempts=0, dead_letter_topic=DEAD_LETTERS
        )
        with Crowd(scene, habits) as crowd:
            seeker = Seeker("seeker", broker.url, crowd.gate, GROUP, TOPIC, scene.history)
            if is_sent_back:
                crowd.start(seeker)
            publishers = [
                Publisher(f"publisher-{n}", broker.url, crowd.gate, topic) for n in range(3)
            ]
            crowd.start(*publishers)
            members = [crowd.joined() for _ in range(5)]
            for kill in range(kills):
                crowd.until_published(topic, (kill + 1) * messages // (kills + 1))
                time.sleep(rng.uniform(0, 0.3))  # let the load run until a random kill
                broker.kill()
                members[0].vanish()
                broker.start()
            crowd.until_published(topic, messages)
            crowd.gate.pause()
            seeker.stop_seeking()
            for publisher in publishers:
                publisher.stop_seeking()
            crowd.gate.resume()
            crowd.until_all_said(topic)
            stored = scene.stored()
            crowd.until_drained()
        check_history(topic.history, stored)
        check_group(scene.history, stored)
        check_letters(scene.history, scene.letters())
        print(
            f"seed {seed}, {kills} kills: {len(stored)} stored, "
            f"{len(scene.history.deliveries)} deliveries, {len(scene.history.seeks)} seeks"
        )


@pytest.mark.parametrize("kills", [0, pytest.param(3, marks=pytest.mark.fault)])
def test_the_order_of_a_hundred_keys_is_exact(tmp_path: Path, kills: int) -> None:  # I11
    """Ten members join, leave and die, and nack at random."""
    rng = random.Random(SEED)
    habits = Habits(ack=0.85, nack=0.1, release=0.03, max_messages=15, lease_ms=1000)
    with running(tmp_path / "data") as broker:
        scene = Scene(broker, keys=100, mode="keyed", backoff_ms=[0], max_attempts=0)
        stored = scene.stored()
        with Crowd(scene, habits) as crowd:
            members = [crowd.joined() for _ in range(10)]
            for turn in range(6):
                crowd.until_settled((turn + 1) * 150)
                gone = rng.sample([each for each in members if not each.is_gone], 3)
                gone[0].vanish()
                for member in gone[1:]:
                    member.leave()
                members += [crowd.joined() for _ in gone]
                if turn < kills:
                    broker.kill()
                    broker.start()
            crowd.until_drained()
        check_group(scene.history, stored, keyed=True)
        print(f"{len(members)} members, {len(scene.history.deliveries)} deliveries")


@pytest.mark.parametrize("kills", [1, pytest.param(KILLS, marks=pytest.mark.fault, id="many")])
def test_what_is_leased_and_what_came_back_is_as_it_was_after_each_kill(  # R1, R5, R6
    tmp_path: Path, kills: int
) -> None:
    """Each run uses a new seed and prints it; `make campaign` does 200 kills."""
    seed = int(os.environ.get("TEST_SEED", random.SystemRandom().randrange(2**32)))
    print(f"seed {seed}")
    counts = run_restarts(tmp_path / "data", kills, seed)
    assert counts["kills"] == kills
