"""Uses the synchronous client of 0.1.0: `python sync_client.py URL TOPIC`. Prints what it saw."""

import json
import sys
import threading
from itertools import islice
from typing import Any

import holdfast


def main(url: str, topic: str) -> dict[str, Any]:
    with holdfast.Client(url) as client:
        seen: dict[str, Any] = {"version": holdfast.__version__, "file": holdfast.__file__}
        client.create_topic(topic, queues=2)
        properties = {"region": "EU"}
        first = client.publish(topic, "grüße", key="k", tag="t", properties=properties, queue=1)
        seen["published"] = [first.queue, first.offset, first.durable]
        with client.producer(topic, queue=0) as producer:
            for number in range(1000):
                producer.send(b"number %d" % number, key=f"k{number % 3}")

        pulled = client.pull_once(topic, 0, 990, max_messages=100)
        seen["pulled"] = [[each.offset, each.body.decode(), each.key] for each in pulled.messages]
        message = client.message(first.message_id)
        seen["message"] = [message.body.decode(), message.tag, message.properties]
        seen["found"] = len(client.search(topic, "k"))
        reader = client.pull(topic, start="earliest", follow=False)
        seen["all"] = len(list(reader))
        batches = client.pull_batches(topic, 0, 0, follow=False)
        seen["in_batches"] = sum(len(batch) for batch in batches)

        # A held pull, which a publish answers.
        later = threading.Timer(0.5, client.publish, (topic, b"late"), {"queue": 1})
        later.start()
        held = client.pull_once(topic, 1, 1, wait_ms=60_000)
        later.join()
        seen["held"] = [each.body.decode() for each in held.messages]

        client.create_group("by-hand", topic, start="earliest")
        one = client.receive("by-hand", "m", max_messages=4, wait_ms=10_000).messages
        receipts = [each.receipt or "" for each in one]
        seen["settled"] = [
            client.ack("by-hand", receipts[:1]),
            client.nack("by-hand", receipts[1:2], delay_ms=0),
            client.release("by-hand", receipts[2:3]),
            client.extend("by-hand", receipts[3:], lease_ms=60_000),
            client.ack("by-hand", receipts[:1]),
        ]
        again = client.receive("by-hand", "m", max_messages=2, wait_ms=10_000).messages
        seen["again"] = sorted(each.attempt for each in again)
        seen["are_the_same"] = {(each.queue, each.offset) for each in again} == {
            (each.queue, each.offset) for each in one[1:3]
        }
        client.leave_group("by-hand", "m")

        with client.consume(topic, "consumers", start="earliest") as deliveries:
            consumed = 0
            for delivery in islice(deliveries, 1002):
                delivery.ack()
                consumed += 1
        seen["consumed"] = consumed
        seen["lag"] = client.describe_group("consumers").lag_messages

        stored = client.store_offsets("by-offsets", topic, {0: 1000})
        seen["stored"] = client.stored_offsets("by-offsets", topic).offsets == stored.offsets
        with client.consume_by_offsets(topic, "by-offsets", follow=False) as rest:
            seen["by_offsets"] = [each.body.decode() for each in rest]
        try:
            client.describe_topic(f"{topic}.none")
        except holdfast.errors.UnknownTopic:
            seen["unknown"] = True
        return seen


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
