"""The clients of a Workload: threads that check their observations, through every restart."""

import itertools
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http import HTTPStatus

from holdfast.client import Client
from holdfast.client.errors import HoldfastError
from holdfast.client.produce.producers import Producer
from tests.support.clients.broker_calls import Answer
from tests.support.event_loop.gate import Gate, GateClient
from tests.support.histories.history import History, Record, Send, check_read


@dataclass(slots=True)
class LoadTopic:
    """A topic under load, and its history."""

    name: str
    queues: int
    retention_bytes: int | None = None
    is_durable: bool = True
    is_idempotent: bool = True
    history: History = field(default_factory=History)


class Publisher(GateClient):
    """Publishes single messages over plain HTTP, each repeated until it is answered."""

    def __init__(
        self, name: str, url: str, gate: Gate, topic: LoadTopic, body_bytes: int = 600
    ) -> None:
        super().__init__(name, url, gate)
        self._topic = topic
        self._body_bytes = body_bytes
        self._numbers = itertools.count()
        self._epoch = 0
        self._sequence = 0
        self._send: Send | None = None
        self._is_over = False

    def stop_seeking(self) -> None:
        """Publish no further message."""
        self._is_over = True

    def turn(self) -> None:
        send = self._send
        if send is None and self._is_over:
            self._gate.wait(0.05)
            return
        if send is None:
            send = self._send = self._next()
            self._topic.history.record_send(send)
        request = json.dumps({"messages": [{"body": send.body.decode(), "key": send.key}]})
        path = f"/v1/topics/{self._topic.name}/messages"
        answer = self.ask("POST", path, request, **self._headers())
        if answer is None:
            return
        if answer.status == HTTPStatus.CONFLICT and not self._topic.is_durable:
            # The broker lost earlier messages in a power loss: this producer starts a new epoch.
            assert answer.json["type"].endswith("/sequence-gap"), answer.raw
            self._epoch, self._sequence = self._epoch + 1, 0
            return
        assert answer.status == HTTPStatus.OK, answer.raw
        assert answer.json["durable"] is self._topic.is_durable
        result = answer.json["results"][0]
        self._topic.history.record_ack(
            send, result["queue"], result["offset"], durable=self._topic.is_durable
        )
        self._sequence += 1
        self._send = None

    def _next(self) -> Send:
        number = next(self._numbers)
        body = f"{self.name}:{number}:".encode() + b"x" * (number * 37 % self._body_bytes)
        return Send(self.name, number, f"key-{self.name}-{number % 3}", body)

    def _headers(self) -> dict[str, str]:
        if not self._topic.is_idempotent:
            return {}
        return {
            "Holdfast_Producer_Id": self.name,
            "Holdfast_Producer_Epoch": str(self._epoch),
            "Holdfast_Producer_Sequence": str(self._sequence),
        }


class Puller(GateClient):
    """Long-polls one queue from its first offset, and records the received messages."""

    def __init__(self, name: str, url: str, gate: Gate, topic: LoadTopic, queue: int) -> None:
        super().__init__(name, url, gate)
        self._topic = topic
        self._queue = queue
        self._offset = 0

    def turn(self) -> None:
        answer = self.ask(
            "GET",
            f"/v1/topics/{self._topic.name}/queues/{self._queue}/messages"
            f"?offset={self._offset}&max_messages=200&wait_ms=300",
        )
        if answer is None:
            return
        if answer.status == HTTPStatus.GONE:
            self._offset = answer.json["min_offset"]
            return
        if answer.status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            # Only messages that were not promised may be lost.
            assert not self._topic.is_durable, f"queue {self._queue} went back: {answer.raw!r}"
            self._offset = answer.json["max_offset"]
            return
        assert answer.status == HTTPStatus.OK, answer.raw
        found = [
            Record(self._queue, message["offset"], message["key"], message["body"].encode())
            for message in answer.json["messages"]
        ]
        check_read(self._queue, self._offset, found, answer.json["next_offset"])
        for each in found:
            self._topic.history.record_consumed(each, durable=self._topic.is_durable)
        self._offset = answer.json["next_offset"]


class OffsetKeeper(GateClient):
    """Stores growing offsets for a group; an acknowledged offset must never go back."""

    def __init__(self, name: str, url: str, gate: Gate, topic: LoadTopic) -> None:
        super().__init__(name, url, gate)
        self._path = f"/v1/groups/{name}/topics/{topic.name}/offsets"
        self._tried = 0
        self.acknowledged = 0

    def turn(self) -> None:
        self.verify()
        self._tried += 1
        body = json.dumps({"offsets": {"0": self._tried}})
        answer = self.ask("PUT", self._path, body)
        if answer is None:
            return
        if answer.status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            self._tried -= 1  # the publishers are not that far yet
            return
        assert answer.status == HTTPStatus.OK, answer.raw
        self.acknowledged = self._tried

    def verify(self) -> bool:
        """Compare the stored with the acknowledged offset; return False if there was no answer."""
        answer = self.ask("GET", self._path)
        if answer is None:
            return False
        stored = 0
        if answer.status != HTTPStatus.NOT_FOUND:
            assert answer.status == HTTPStatus.OK, answer.raw
            stored = answer.json["offsets"].get("0", 0)
        assert self.acknowledged <= stored <= self._tried, (
            f"offset {self.acknowledged} was stored, {self._tried} tried, {stored} is there"
        )
        return True


class TopicChurner(GateClient):
    """Creates, uses and deletes topics; acknowledged changes must survive each restart."""

    def __init__(self, name: str, url: str, gate: Gate) -> None:
        super().__init__(name, url, gate)
        self._number = 0
        self._step = 0
        self._was_tried = False
        self.deleted = 0

    @property
    def topic(self) -> str:
        return f"churn-{self._number}"

    def turn(self) -> None:
        path = f"/v1/topics/{self.topic}"
        steps = (
            ("PUT", path, json.dumps({"queues": 2})),
            ("GET", path, None),
            ("POST", f"{path}/messages", json.dumps({"messages": [{"body": "x" * 2000}]})),
            ("PUT", f"/v1/groups/churners/topics/{self.topic}/offsets", '{"offsets": {"0": 1}}'),
            ("GET", path, None),
            ("DELETE", f"{path}?confirm={self.topic}", None),
            ("GET", path, None),
        )
        method, where, body = steps[self._step]
        answer = self.ask(method, where, body)
        if answer is None:
            self._was_tried = True
            return
        self._judge(method, answer)
        self._was_tried = False
        self._step += 1
        if self._step == len(steps):
            self._step = 0
            self._number += 1
            self.deleted += 1

    def _judge(self, method: str, answer: Answer) -> None:
        expected = {HTTPStatus.OK, HTTPStatus.CREATED, HTTPStatus.NO_CONTENT}
        if method == "DELETE" and self._was_tried:
            expected.add(HTTPStatus.NOT_FOUND)  # the previous attempt was carried out
        if method == "GET" and self._step > 4:
            expected = {HTTPStatus.NOT_FOUND}
        assert answer.status in expected, f"{method} {self.topic} was answered {answer}"


class BatchPublisher(threading.Thread):
    """Publishes with the producer of the client library, some hundred messages at once."""

    def __init__(self, name: str, client: Client, gate: Gate, topic: LoadTopic) -> None:
        super().__init__(name=name, daemon=True)
        self._client = client
        self._gate = gate
        self._topic = topic
        self.error: BaseException | None = None

    def run(self) -> None:
        numbers = itertools.count()
        self._gate.enter()
        try:
            while self._gate.passes():
                failures = self._gate.disk_failures
                try:
                    # The producer's retry pauses grow to seconds. It may miss a broker that is up
                    # only briefly, many times.
                    with self._client.producer(
                        self._topic.name, delivery_timeout_ms=900_000
                    ) as producer:
                        self._publish(producer, numbers)
                except HoldfastError:
                    # The producer gave up, correctly: the broker turned read-only, perhaps more
                    # than once, or the producer continued after an acknowledgement that was lost
                    # with the disk.
                    if failures == self._gate.disk_failures and not self._gate.disk_fails:
                        raise
        except BaseException as error:
            self.error = error
        finally:
            self._gate.leave()

    def _publish(self, producer: Producer, numbers: Iterator[int]) -> None:
        while self._gate.passes():
            sends = [self._send(next(numbers)) for _ in range(100)]
            handles = [producer.send(send.body, key=send.key) for send in sends]
            for send, handle in zip(sends, handles, strict=True):
                result = handle.result()
                assert result.durable
                if not self._gate.disk_fails:
                    self._topic.history.record_ack(send, result.queue, result.offset)
            self._gate.wait(0.05)

    def _send(self, number: int) -> Send:
        body = f"{self.name}:{number}:".encode() + b"y" * (number * 53 % 500)
        send = Send(self.name, number, f"key-{self.name}-{number % 3}", body)
        self._topic.history.record_send(send)
        return send


class GroupConsumer(threading.Thread):
    """Consumes with the client library for a group, which stores its offsets. At-least-once."""

    def __init__(self, name: str, client: Client, gate: Gate, topic: LoadTopic) -> None:
        super().__init__(name=name, daemon=True)
        self._client = client
        self._gate = gate
        self._topic = topic
        self._is_over = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._is_over.is_set():
                failures = self._gate.disk_failures
                try:
                    self._consume()
                except HoldfastError:
                    # The consumer reads ahead, so it may report a failure late.
                    is_known = failures < self._gate.disk_failures or self._gate.disk_fails
                    if not self._is_over.wait(0.1) and not is_known:
                        raise
        except BaseException as error:
            self.error = error

    def _consume(self) -> None:
        with self._client.consume_by_offsets(
            self._topic.name, group=self.name, start="earliest", commit_interval_ms=50
        ) as messages:
            for message in messages:
                found = Record(message.queue, message.offset, message.key, bytes(message.body))
                if not self._gate.disk_fails:
                    self._topic.history.record_consumed(found)

    def end(self) -> None:
        """Report that the client may be closed now."""
        self._is_over.set()
