"""Members of a group with leases, as threads that receive and settle over plain HTTP.

They continue through every restart of the broker, and record deliveries and settlements.
"""

import json
import random
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any
from uuid import uuid4

from tests.support.clients.broker_calls import Answer
from tests.support.event_loop.gate import Gate, GateClient
from tests.support.histories.group_history import (
    SLACK_S,
    Delivery,
    GroupHistory,
    Place,
    Seek,
    SettleCall,
)
from tests.support.histories.history import Record


@dataclass(frozen=True, slots=True)
class Habits:
    """How often a member settles a message in each way, and the parameters of its requests."""

    ack: float = 1.0
    nack: float = 0.0
    release: float = 0.0
    reject: float = 0.0
    #: The remaining share is neither settled nor given back: its leases expire.
    max_messages: int = 20
    lease_ms: int = 2000
    nack_delay_ms: int = 0
    wait_ms: int = 300


@dataclass(slots=True)
class _Pending:
    """A settlement that has not been answered yet."""

    verb: str
    deliveries: list[Delivery]
    #: When the request was sent first: the broker may apply it from then on.
    sent_at: float = field(default_factory=time.monotonic)


class Member(GateClient):
    """A member that receives, and settles its messages before it receives again.

    It repeats a request until it gets an answer. It settles the messages of a key in order: after a
    message that it gave back or keeps, it also gives back or keeps the later ones of the key.
    `leave` ends its work in order, `vanish` without a request.
    """

    def __init__(
        self,
        name: str,
        url: str,
        gate: Gate,
        group: str,
        history: GroupHistory,
        *,
        habits: Habits | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(name, url, gate)
        self._path = f"/v1/groups/{group}"
        self._history = history
        self._habits = habits or Habits()
        self._random = random.Random(f"{name} {seed}")
        self._pending: deque[_Pending] = deque()
        self._attempt: str | None = None
        #: Messages that it received and does not settle.
        self._ignored: list[Delivery] = []
        self._is_leaving = self._is_gone = False

    @property
    def is_gone(self) -> bool:
        """Whether the member has left, is leaving, or has vanished."""
        return self._is_gone or self._is_leaving

    def leave(self) -> None:
        """Let the member send its open settlements, leave the group, and end."""
        self._is_leaving = True

    def vanish(self) -> None:
        """Let the member stop soon, without leaving the group."""
        self._is_gone = True

    def turn(self) -> None:
        if self._is_gone:
            self._gate.wait(0.05)
        elif self._pending:
            self._settle()
        elif self._is_leaving and self._attempt is None:
            self._leave()
        else:
            self._receive()

    def _receive(self) -> None:
        self._attempt = self._attempt or uuid4().hex
        habits = self._habits
        names = ("max_messages", "lease_ms", "wait_ms")
        asked = {name: getattr(habits, name) for name in names}
        asked |= {"member": self.name, "attempt_id": self._attempt}
        sent_at = time.monotonic()
        answer = self._post("receive", asked)
        if answer is None:
            return
        self._attempt = None
        assert answer.status == HTTPStatus.OK, answer.raw
        deliveries = deliveries_of(self.name, answer, sent_at, habits.lease_ms)
        self._history.record_deliveries(deliveries)
        self._decide(deliveries)

    def _decide(self, deliveries: Iterable[Delivery]) -> None:
        habits, given_back = self._habits, set()
        for each in deliveries:
            verbs = ("ack", "nack", "release", "reject", "")
            weights = [habits.ack, habits.nack, habits.release, habits.reject]
            verb = self._random.choices(verbs, [*weights, max(1.0 - sum(weights), 0.0)])[0]
            key = each.message.key
            if self._waits_for_earlier(each):
                verb = ""
            elif key is not None and key in given_back:
                verb = "release"
            elif verb in ("nack", "release"):
                given_back.add(key)
            if not verb:
                self._ignored.append(each)
                continue
            # Messages are given back one by one and in order; acknowledgements are sent together.
            last = self._pending[-1] if self._pending else None
            if last is not None and last.verb == verb == "ack":
                last.deliveries.append(each)
            else:
                self._pending.append(_Pending(verb, [each]))

    def _waits_for_earlier(self, delivery: Delivery) -> bool:
        """Return whether the member may still hold an earlier message of the key that it does not
        settle."""
        return any(
            each.message.key == delivery.message.key is not None
            and each.place < delivery.place
            and delivery.sent_at < each.answered_at + each.lease_s + SLACK_S
            for each in self._ignored
        )

    def _settle(self) -> None:
        pending = self._pending[0]
        body: dict[str, Any] = {"receipts": [each.receipt for each in pending.deliveries]}
        if pending.verb == "nack":
            body["delay_ms"] = self._habits.nack_delay_ms
        answer = self._post(pending.verb, body)
        if answer is not None:
            assert answer.status == HTTPStatus.OK, answer.raw
            self._pending.popleft()
        calls = settle_calls_of(pending.verb, pending.deliveries, pending.sent_at, answer)
        self._history.record_settle_calls(calls)

    def _leave(self) -> None:
        sent_at = time.monotonic()
        answer = self._post("leave", {"member": self.name})
        # The status is not checked: the messages are given back now, or their leases expire.
        self._history.record_settle_calls(settle_calls_of("leave", self._ignored, sent_at, None))
        self._is_gone = answer is not None

    def _post(self, what: str, body: object) -> Answer | None:
        return self.ask("POST", f"{self._path}/{what}", json.dumps(body))


class Seeker(GateClient):
    """Seeks the group a little back, one queue after another, until `stop_seeking`."""

    def __init__(
        self, name: str, url: str, gate: Gate, group: str, topic: str, history: GroupHistory
    ) -> None:
        super().__init__(name, url, gate)
        self._path = f"/v1/groups/{group}"
        self._topic = topic
        self._history = history
        self._random = random.Random(name)
        self._is_over = False

    def stop_seeking(self) -> None:
        """End all seeks; the gate must be closed before."""
        self._is_over = True

    def turn(self) -> None:
        self._gate.wait(0.3)
        answer = None if self._is_over else self.ask("GET", self._path)
        if answer is None:
            return
        assert answer.status == HTTPStatus.OK, answer.raw
        queues = answer.json["topics"][0]["queues"]
        queue = self._random.choice(queues)
        # Never seek forward, even if the group has advanced meanwhile: no message may be skipped.
        offset = max(0, queue["floor"] - self._random.randrange(10))
        self._seek(queue["queue"], offset)

    def _seek(self, queue: int, offset: int) -> None:
        seek = Seek(queue, offset, time.monotonic())
        target = {"to": {self._topic: {str(queue): offset}}}
        answer = self.ask("POST", f"{self._path}/seek", json.dumps(target))
        if answer is not None:
            assert answer.status == HTTPStatus.OK, answer.raw
            seek = replace(seek, answered_at=time.monotonic())
        self._history.record_seek(seek)


def letters_of(messages: Iterable[Any]) -> list[Place]:
    """Return the source message of each dead letter."""
    all_properties = (message.properties for message in messages)
    names = ("holdfast-dead-queue", "holdfast-dead-offset")
    return [(int(each[names[0]]), int(each[names[1]])) for each in all_properties]


def deliveries_of(
    member: str, answer: Any, sent_at: float, lease_ms: int, answered_at: float | None = None
) -> list[Delivery]:
    """Return the deliveries of an answer, which arrived now unless `answered_at` is given."""
    answered_at = time.monotonic() if answered_at is None else answered_at
    assert answer.status == 200, answer  # a group may be lost together with its offsets
    return [
        Delivery(
            member,
            Record(each["queue"], each["offset"], each["key"], each["body"].encode()),
            each["attempt"],
            each["redelivered"],
            each["receipt"],
            sent_at,
            answered_at,
            lease_ms / 1000,
        )
        for each in answer.json["messages"]
    ]


def settle_calls_of(
    verb: str, deliveries: Sequence[Delivery], sent_at: float, answer: Any
) -> list[SettleCall]:
    """Return the settlements that a request contained, with its answer; None means no answer."""
    answered_at = float("inf") if answer is None else time.monotonic()
    statuses = [""] * len(deliveries)
    if answer is not None:
        statuses = [each["status"] for each in answer.json["results"]]
    return [
        SettleCall(verb, each.place, each.receipt, sent_at, answered_at, status)
        for each, status in zip(deliveries, statuses, strict=True)
    ]
