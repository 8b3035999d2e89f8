"""Check a real broker under groups after each kill or stop:

    python -m tests.crash.restart_campaign KILLS [SEED]

Two groups read one topic: a competing group, in which one member filters, and a keyed group. Each
round, members receive, acknowledge, release, fail with a delay, reject and leave, until the broker
is killed in the middle of a request (or, one time in eight, stopped in order). The campaign sends
that request again after the start, so the state of every message is known exactly. Then another
member receives until a reply is empty. The violations are:

    waits      a returned or never delivered message waits for the lease of another message
    overtaken_offsets  a later message of the queue, or of the key, is delivered first
    too-early  a leased or delayed message is delivered
    risen      a message is delivered again after its ack or reject was answered `done`
    attempt    the attempt count or the redelivery flag of a delivery is wrong
    stale      the receipt of a valid lease, or a repeated settling, is refused
"""

import http.client
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.running_broker import RunningBroker
from tests.support.clients.broker_calls import Answer, Calls
from tests.support.histories.history import HistoryViolation

TOPIC, QUEUES, KEYS = "work", 2, 5
MEMBERS = ("a", "b", "c")
#: Leases outlast the longest start: messages of a lost reply are still leased when the request is
#: sent again.
LEASES_MS = (90_000, 600_000)
DELAYS_MS = (0, 0, 600_000)
#: These shorter leases end about when the broker is up again and answers the member that reads
#: everything.
SOON_MS = 1_000, 4_000
#: Nothing is asserted this long before and after a deadline: the machine or its clocks may stall.
SLACK_S = 4.0
#: The broker counts whole milliseconds, before and after a restart.
CLOCK_S = 0.01
ARGUMENTS = ("--commitlog-segment-bytes", "1MiB", "--commitlog-reserve-bytes", "0")

Place = tuple[int, int]


@dataclass
class Message:
    """The known state of one message in one group."""

    key: str
    tag: str
    state: str = "available"
    member: str = ""
    receipt: str = ""
    #: The lease or the delay of the message ends at this time or later.
    from_s: float = 0.0
    came_back: int = 0
    #: The history of the message, for the reader of a violation.
    story: list[str] = field(default_factory=list)

    def note(self, what: str) -> None:
        """Add an event to the history."""
        self.story = [*self.story[-11:], f"{time.monotonic():.3f} {what}"]


@dataclass
class GroupBook:
    """One group, as its members know it."""

    name: str
    is_keyed: bool
    messages: dict[Place, Message] = field(default_factory=dict)
    #: Requests answered `done` since the previous start, which are therefore final: (verb,
    #: receipt).
    said: list[tuple[str, str]] = field(default_factory=list)

    def delivered(self, member: str, answer: Answer, sent_at: float, lease_ms: int) -> list[Place]:
        """Record the reply to a receive request and check each message in it."""
        had_at, places = time.monotonic(), []
        for each in answer.json["messages"]:
            place = each["queue"], each["offset"]
            self._judge(place, each, had_at)
            message = self.messages[place]
            message.state, message.member, message.receipt = "leased", member, each["receipt"]
            message.from_s = sent_at + lease_ms / 1000
            message.note(f"to {member}, attempt {each['attempt']}, from {sent_at:.3f}, {lease_ms}")
            places.append(place)
        return places

    def _judge(self, place: Place, found: dict[str, Any], had_at: float) -> None:
        message = self.messages[place]
        if message.receipt == found["receipt"] and message.state == "leased":
            return  # the reply to a repeated request
        if message.state == "settled":
            raise HistoryViolation("risen", f"{place} of {self.name}: {message}")
        if message.state != "available":
            if had_at < message.from_s - CLOCK_S:
                what = f"{place} of {self.name}, {message.from_s - had_at:.3f} s: {message}"
                raise HistoryViolation("too-early", what)
            message.came_back += message.state == "leased"  # its lease ended
        expected = message.came_back + 1, message.came_back > 0
        if (found["attempt"], found["redelivered"]) != expected:
            what = f"{place} of {self.name}: {found['attempt']}, {found['redelivered']}"
            raise HistoryViolation("attempt", f"{what}, not {expected}: {message}")

    def settled(self, verb: str, places: Iterable[Place], answer: Answer, times: "_Times") -> None:
        """Record settle results: while a lease is valid, its receipt must be accepted."""
        for place, result in zip(places, answer.json["results"], strict=True):
            message = self.messages[place]
            message.note(f"{verb}, {result['status']}, {times}")
            if result["status"] != "done":
                if verb == "extend" and time.monotonic() > times.sent_at + times.lease_ms / 1000:
                    message.state = "available"  # the lease was extended and has ended since
                    message.came_back += 1
                    continue
                if time.monotonic() > message.from_s - SLACK_S:
                    continue  # the start took so long that the lease has ended
                raise HistoryViolation("stale", f"{verb} of {place} in {self.name}: {message}")
            if verb in ("ack", "reject"):
                message.state = "settled"
                self.said.append((verb, message.receipt))
                continue
            if verb == "extend":
                message.from_s = times.sent_at + times.lease_ms / 1000
                continue
            message.came_back += 1
            message.state = "delayed" if times.delay_ms else "available"
            message.from_s = times.sent_at + times.delay_ms / 1000

    def left(self, member: str) -> None:
        """Record that a member left: other members may receive its messages."""
        for message in self.messages.values():
            if message.state == "leased" and message.member == member:
                message.state = "available"
                message.came_back += 1
                message.note(f"{member} left")

    def held_by(self, member: str) -> list[Place]:
        """Return the messages that a member can settle well before their leases end."""
        soon = time.monotonic() + SLACK_S
        return sorted(
            place
            for place, each in self.messages.items()
            if each.state == "leased" and each.member == member and each.from_s > soon
        )

    def states(self, now_s: float) -> dict[Place, str]:
        """Return the state of each message; "unsure" near the end of a lease or a delay."""
        states = {}
        for place, each in self.messages.items():
            is_sure = each.state in ("available", "settled") or now_s < each.from_s - SLACK_S
            states[place] = each.state if is_sure else "unsure"
        return states

    def check_all(self, states: dict[Place, str], places: list[Place]) -> None:
        """Check the order of a complete receive that began when the messages had these states."""
        for queue in range(QUEUES):
            # A message that returns while a reply is filled comes after the messages already in the
            # reply.
            latest = -1
            for place in [each for each in places if each[0] == queue]:
                if place[1] < latest and states[place] == "available":
                    what = f"{place} of {self.name} behind {latest}"
                    raise HistoryViolation("overtaken_offsets", f"{what}: {self.messages[place]}")
                latest = max(latest, place[1])
        there = set(places)
        heads: dict[str, str] = {}
        for place, message in sorted(self.messages.items()):
            state = states[place]
            if state == "settled":
                continue
            head = heads.setdefault(message.key, state) if self.is_keyed else "available"
            if head == "available" and state == "available" and place not in there:
                raise HistoryViolation("waits", f"{place} of {self.name}: {message}")
            if self.is_keyed:
                if head in ("leased", "delayed", "taken") and place in there:
                    raise HistoryViolation(
                        "overtaken_offsets", f"{place} of {message.key}, {self.name}"
                    )
                heads[message.key] = "taken" if head == "available" else head


@dataclass
class _Times:
    sent_at: float
    delay_ms: int = 0
    lease_ms: int = 0


@dataclass
class _Request:
    """One request of a member. It is sent again until it is answered."""

    book: GroupBook
    what: str
    body: dict[str, Any]
    places: list[Place] = field(default_factory=list)
    sent_at: float = 0.0

    def send(self, calls: Calls) -> None:
        """Send the request and record the reply. OSError and HTTPException propagate."""
        self.sent_at = self.sent_at or time.monotonic()
        answer = calls("POST", f"/v1/groups/{self.book.name}/{self.what}", self.body)
        if answer.status != 200:
            raise HistoryViolation("refused", f"{self.what}: {answer.raw!r}")
        if self.what == "receive":
            lease_ms = self.body["lease_ms"]
            self.book.delivered(self.body["member"], answer, self.sent_at, lease_ms)
        elif self.what == "leave":
            self.book.left(self.body["member"])
        else:
            times = _Times(self.sent_at, self.body.get("delay_ms", 0), self.body.get("lease_ms", 0))
            self.book.settled(self.what, self.places, answer, times)


class Campaign:
    """One broker, killed and restarted many times."""

    def __init__(self, data_dir: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.broker = RunningBroker(data_dir, ARGUMENTS, start_timeout_s=60)
        self.books = [GroupBook("mixed", False), GroupBook("keyed", True)]
        self.counts = dict.fromkeys(("kills", "stops", "requests", "cut short"), 0)
        self._pending: _Request | None = None
        self._number = 0

    def begin(self) -> None:
        """Start the broker and create the topic and its groups."""
        self.broker.start()
        calls = Calls(self.broker.url)
        assert calls("PUT", f"/v1/topics/{TOPIC}", {"queues": QUEUES}).status in (200, 201)
        for book in self.books:
            settings: dict[str, Any] = {
                "topics": {TOPIC: {}},
                "max_in_flight": 10_000,
                "max_attempts": 0,
                "member_ttl_ms": 3_600_000,
            }
            if book.is_keyed:
                settings |= {"mode": "keyed", "max_in_flight_per_key": 1}
            assert calls("PUT", f"/v1/groups/{book.name}", settings).status == 201

    def round(self) -> None:
        """Let members work until the broker ends, restart it, and check the result."""
        self._publish(self.rng.randrange(5, 25))
        is_kill = self.rng.random() < 7 / 8
        ending = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            work = pool.submit(self._work, ending)
            time.sleep(self.rng.uniform(0.02, 0.3))  # let the load run until a random kill
            if is_kill:
                self.broker.kill()
            else:
                ending.set()
                work.result()
                assert self.broker.stop() == 0
            work.result()
        self.counts["kills" if is_kill else "stops"] += 1
        self.broker.start()
        calls = Calls(self.broker.url)
        if self._pending is not None:
            self.counts["cut short"] += 1
            self._pending.send(calls)
            self._pending = None
        for book in self.books:
            self._judge(book, calls)

    def _judge(self, book: GroupBook, calls: Calls) -> None:
        said, book.said = book.said[-50:], []
        for verb, receipt in said:
            answer = calls("POST", f"/v1/groups/{book.name}/{verb}", {"receipts": [receipt]})
            if answer.json["results"][0]["status"] != "done":
                raise HistoryViolation("stale", f"{verb} that is said again: {answer.raw!r}")
        states, places = book.states(time.monotonic()), []
        ask = {"member": "judge", "max_messages": 1000, "lease_ms": LEASES_MS[0]}
        while True:  # a reply does not wait for slow reads; the next reply contains their messages
            sent_at = time.monotonic()
            answer = calls("POST", f"/v1/groups/{book.name}/receive", ask)
            if not (found := book.delivered("judge", answer, sent_at, LEASES_MS[0])):
                break
            places += found
        book.check_all(states, places)
        for place in book.held_by("judge"):
            verb = self.rng.choices(("ack", "release", "nack"), (6, 3, 1))[0]
            _Request(book, verb, self._words(book, [place], verb), [place]).send(calls)

    def _publish(self, count: int) -> None:
        calls = Calls(self.broker.url)
        messages = []
        for _ in range(count):
            self._number += 1
            messages.append(
                {
                    "body": str(self._number),
                    "key": f"key-{self.rng.randrange(KEYS)}",
                    "tag": self.rng.choice("xy"),
                }
            )
        answer = calls("POST", f"/v1/topics/{TOPIC}/messages", {"messages": messages})
        assert answer.status == 200, answer
        for message, result in zip(messages, answer.json["results"], strict=True):
            for book in self.books:
                place = result["queue"], result["offset"]
                book.messages[place] = Message(message["key"], message["tag"])

    def _work(self, ending: threading.Event) -> None:
        calls = Calls(self.broker.url, keep_alive=True)
        while not ending.is_set():
            request = self._next_request()
            self._pending = request
            try:
                request.send(calls)
            except (OSError, http.client.HTTPException):
                return
            self._pending = None
            self.counts["requests"] += 1

    def _next_request(self) -> _Request:
        book, member = self.rng.choice(self.books), self.rng.choice(MEMBERS)
        held = book.held_by(member)
        what = self.rng.choices(("receive", "settle", "leave"), (4, 5 if held else 0, 0.3))[0]
        if what == "leave":
            return _Request(book, "leave", {"member": member})
        if what == "receive":
            self._number += 1
            body: dict[str, Any] = {
                "member": member,
                "max_messages": self.rng.choice((1, 3, 10)),
                "lease_ms": self.rng.choice(LEASES_MS),
                "attempt_id": f"request-{self._number}",
            }
            if not book.is_keyed and member == "a":
                body["filter"] = "x"
            return _Request(book, "receive", body)
        verb = self.rng.choices(("ack", "release", "nack", "extend", "reject"), (4, 4, 2, 2, 0.5))[
            0
        ]
        places = self.rng.sample(held, min(len(held), self.rng.choice((1, 2, 5))))
        return _Request(book, verb, self._words(book, places, verb), places)

    def _words(self, book: GroupBook, places: list[Place], verb: str) -> dict[str, Any]:
        body: dict[str, Any] = {"receipts": [book.messages[each].receipt for each in places]}
        if verb == "nack":
            body["delay_ms"] = self.rng.choice((*DELAYS_MS, self.rng.randrange(*SOON_MS)))
        elif verb == "extend":
            body["lease_ms"] = self.rng.choice((*LEASES_MS, self.rng.randrange(*SOON_MS)))
        return body


def run(data_dir: Path, kills: int, seed: int) -> dict[str, int]:
    """Run until the broker was killed `kills` times; return counts of the events."""
    campaign = Campaign(data_dir, seed)
    try:
        campaign.begin()
        while campaign.counts["kills"] < kills:
            campaign.round()
            if campaign.counts["kills"] % 10 == 0:
                print(campaign.counts, flush=True)
        assert campaign.broker.stop() == 0
    finally:
        campaign.broker.kill()
    return campaign.counts


def main() -> None:
    """Run the campaign from the command line, with a new seed unless one is given."""
    kills = int(sys.argv[1])
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.SystemRandom().randrange(2**32)
    print(f"{kills} kills, seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="holdfast-kills-") as directory:
        print(run(Path(directory) / "data", kills, seed))


if __name__ == "__main__":
    main()
