"""The cost of a receive from a group compared with a plain pull, over HTTP.

    python -m bench.group_receive [--json] [--requests 200] [--rounds 5]

One connection to a broker process on loopback requests messages of 200 bytes as JSON: with pulls,
and with receives from a group with leases. It acknowledges the messages of each receive with one
request. Rounds of pulls, receives and acknowledgements alternate. Costs are processor times of the
broker; rates are those of this one connection.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterator

from bench.harness import Figure, arguments, broker, measure
from bench.http_requests import JSON, Wire, encode_request
from bench.rows import TIMES, Row, report
from holdfast.commitlog.format.batch_encoding import encode_batch

_BODY_BYTES = 200
_BATCHES = (32, 1)
#: Requests of one message are cheap. So this many times more of them are sent, to make their
#: processor time measurable.
_MORE_OF_ONE = 3
_PUBLISHED_AT_ONCE = 100
_REQUESTS = "requests/s"
#: The highest cost that the requirements allow for a receive of 32 messages.
_BAR = 2.0
_BLOCK = {"Content-Type": "application/vnd.holdfast.batch"}

_WHATS = ("pull", "receive", "ack")

Figures = dict[tuple[str, int], list[Figure]]
"""The figures for each (kind of request, number of messages per request)."""


def main() -> None:
    """Measure and print."""
    options = arguments(__doc__ or "", requests=200, rounds=5)
    report(rows(options.requests, options.rounds), as_json=options.json)


def rows(requests: int, rounds: int) -> Iterator[Row]:
    """Measure; yield the rates and costs, and the ratios of the costs."""
    figures = measured(requests, rounds)
    for (what, batch), runs in figures.items():
        rates = [run.messages / batch / run.seconds for run in runs]
        broker_us = [_us(run) for run in runs]
        client_us = [run.client_cpu_s * 1e6 / run.messages for run in runs]
        yield Row(
            "", f"{what} of {batch}", "-", _REQUESTS, rates, _BODY_BYTES, broker_us, client_us
        )
    for batch in _BATCHES:
        pull, receive, ack = ([_us(run) for run in figures[what, batch]] for what in _WHATS)
        bar = _BAR if batch == 32 else None
        ratios = [a / b for a, b in zip(receive, pull, strict=True)]
        yield Row("", f"receive beside pull, {batch}", "-", TIMES, ratios, at_most=bar)
        ratios = [(a + c) / b for a, b, c in zip(receive, pull, ack, strict=True)]
        yield Row("", f"receive and ack beside pull, {batch}", "-", TIMES, ratios)


def _us(figure: Figure) -> float:
    """Return the broker's processor time per message, in microseconds."""
    return figure.broker_cpu_s * 1e6 / figure.messages


def measured(requests: int, rounds: int) -> Figures:
    """Measure the kinds of requests alternately. The first round does not count."""
    figures: Figures = defaultdict(list)
    with broker() as running:
        wire = Wire(running.url)
        for batch in _BATCHES:
            count = requests if batch > 1 else requests * _MORE_OF_ONE
            turns = _Turns(wire, batch, count, rounds + 1)
            for round_ in range(rounds + 1):
                for what in _WHATS:
                    figure = measure(
                        what,
                        running,
                        turns.work(what),
                        durability="-",
                        messages=count * batch,
                        body_bytes=_BODY_BYTES,
                    )
                    if round_:
                        figures[what, batch].append(figure)
    return figures


class _Turns:
    """Runs one round of each kind of request, on a topic with enough messages and a group that
    reads it."""

    def __init__(self, wire: Wire, batch: int, requests: int, turns: int) -> None:
        self._wire = wire
        self._batch = batch
        self._requests = requests
        self._topic = f"of-{batch}"
        self._pulled = 0
        self._answers: list[bytes] = []
        self._put(f"/v1/topics/{self._topic}", {"queues": 1})
        group = {"topics": {self._topic: {}}, "start": "earliest", "max_in_flight": 100_000}
        self._put(f"/v1/groups/{self._topic}", group)
        block = encode_batch(
            [b"x" * _BODY_BYTES] * _PUBLISHED_AT_ONCE, born_timestamp_us=1, queue_id=0
        )
        path = f"/v1/topics/{self._topic}/messages?durability=fsync"
        for _ in range(-(-batch * requests * turns // _PUBLISHED_AT_ONCE)):
            wire.ask(encode_request("POST", path, block, _BLOCK))

    def work(self, what: str) -> Callable[[], None]:
        """Prepare a round of requests of one kind, and return the function that runs it. Acks are
        for the messages of the last round of receives."""
        if what == "pull":
            return self._pull
        if what == "receive":
            return self._receive
        received = [json.loads(answer)["messages"] for answer in self._answers]
        assert all(len(messages) == self._batch for messages in received)
        asked = [
            self._post("ack", {"receipts": [each["receipt"] for each in messages]})
            for messages in received
        ]
        return lambda: self._ack(asked)

    def _pull(self) -> None:
        """Pull from the end of the last pull."""
        path = f"/v1/topics/{self._topic}/queues/0/messages?max_messages={self._batch}&offset="
        for _ in range(self._requests):
            self._wire.ask(encode_request("GET", f"{path}{self._pulled}"))
            self._pulled += self._batch

    def _receive(self) -> None:
        """Receive as many messages as `_pull` pulls; keep the raw answers for the acks."""
        request = self._post("receive", {"max_messages": self._batch})
        self._answers = [self._wire.ask(request) for _ in range(self._requests)]

    def _ack(self, asked: list[bytes]) -> None:
        for request in asked:
            self._wire.ask(request)

    def _put(self, path: str, fields: dict[str, object]) -> None:
        self._wire.ask(encode_request("PUT", path, json.dumps(fields).encode(), JSON))

    def _post(self, verb: str, fields: dict[str, object]) -> bytes:
        path = f"/v1/groups/{self._topic}/{verb}"
        return encode_request("POST", path, json.dumps(fields).encode(), JSON)


if __name__ == "__main__":
    main()
