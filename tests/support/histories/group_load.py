"""Members of a group with leases as a part of a Workload, and the judgement of their history."""

import time
from contextlib import suppress

from holdfast.client import Client
from holdfast.client.errors import UnknownTopic
from tests.support.clients.broker_calls import Calls, wait_until
from tests.support.event_loop.gate import Gate, GateClient
from tests.support.histories.group_history import GroupHistory, check_group, check_letters
from tests.support.histories.group_members import (
    Habits,
    Member,
    Seeker,
    deliveries_of,
    letters_of,
    settle_calls_of,
)
from tests.support.histories.history import Record
from tests.support.histories.workload_clients import LoadTopic

GROUP, DEAD_LETTERS = "leased", "durable.dead"
LEASE_MS = 1000
_HABITS = Habits(ack=0.8, nack=0.05, release=0.05, reject=0.02, max_messages=100, lease_ms=LEASE_MS)


class GroupLoad:
    """Three members and a thread that seeks the group back; the workload runs them as `threads`."""

    def __init__(self, url: str, gate: Gate, topic: LoadTopic) -> None:
        self._topic = topic
        self._history = GroupHistory()
        self._calls = Calls(url, timeout_s=30)
        self.threads: list[GateClient] = [
            Member(f"member-{n}", url, gate, GROUP, self._history, habits=_HABITS) for n in range(3)
        ]
        self.threads.append(Seeker("seeker", url, gate, GROUP, topic.name, self._history))

    def begin(self) -> None:
        """Create the group. Its topic exists already."""
        settings = {
            "topics": {self._topic.name: {}},
            "lease_ms": LEASE_MS,
            "backoff_ms": [0],
            "max_attempts": 0,
            "dead_letter_topic": DEAD_LETTERS,
        }
        answer = self._calls("PUT", f"/v1/groups/{GROUP}", settings)
        assert answer.status == 201, answer

    def judge(self, client: Client) -> None:
        """Settle the remaining messages, and judge the history. The threads must be paused.

        Raise HistoryViolation if the history is wrong.
        """
        self._drain()
        final = [
            Record(message.queue, message.offset, message.key, bytes(message.body))
            for message in client.pull(self._topic.name, follow=False)
        ]
        check_group(self._history, final)
        with suppress(UnknownTopic):
            check_letters(self._history, letters_of(client.pull(DEAD_LETTERS, follow=False)))

    def _drain(self) -> None:
        def is_settled() -> bool:
            described = self._calls("GET", f"/v1/groups/{GROUP}").json
            return (described["lag_messages"], described["dying"]) == (0, 0)

        def settle_more() -> bool:
            asked = {"member": "last", "max_messages": 1000, "wait_ms": 100, "lease_ms": LEASE_MS}
            sent_at = time.monotonic()
            answer = self._calls("POST", f"/v1/groups/{GROUP}/receive", asked)
            found = deliveries_of("last", answer, sent_at, LEASE_MS)
            self._history.record_deliveries(found)
            sent_at = time.monotonic()
            receipts = {"receipts": [each.receipt for each in found]}
            if found:
                answer = self._calls("POST", f"/v1/groups/{GROUP}/ack", receipts)
                self._history.record_settle_calls(settle_calls_of("ack", found, sent_at, answer))
            return not found and is_settled()

        wait_until(settle_more, "everything is settled", timeout_s=120)
