"""Uses the asyncio client of 0.1.0: `python async_client.py URL TOPIC`. Prints what it saw."""

import asyncio
import json
import sys
from typing import Any

import holdfast


async def main(url: str, topic: str) -> dict[str, Any]:
    async with holdfast.AsyncClient(url) as client:
        seen: dict[str, Any] = {"version": holdfast.__version__, "file": holdfast.__file__}
        await client.create_topic(topic, queues=2)
        properties = {"region": "EU"}
        first = await client.publish(
            topic, "grüße", key="k", tag="t", properties=properties, queue=1
        )
        seen["published"] = [first.queue, first.offset, first.durable]
        async with client.producer(topic, queue=0) as producer:
            for number in range(1000):
                await producer.send(b"number %d" % number, key=f"k{number % 3}")

        pulled = await client.pull_once(topic, 0, 990, max_messages=100)
        seen["pulled"] = [[each.offset, each.body.decode(), each.key] for each in pulled.messages]
        message = await client.message(first.message_id)
        seen["message"] = [message.body.decode(), message.tag, message.properties]
        seen["found"] = len(await client.search(topic, "k"))
        reader = client.pull(topic, start="earliest", follow=False)
        seen["all"] = len([each async for each in reader])
        batches = client.pull_batches(topic, 0, 0, follow=False)
        seen["in_batches"] = sum([len(batch) async for batch in batches])

        # A held pull, which a publish answers.
        held = asyncio.create_task(client.pull_once(topic, 1, 1, wait_ms=60_000))
        await asyncio.sleep(0.5)
        await client.publish(topic, b"late", queue=1)
        seen["held"] = [each.body.decode() for each in (await held).messages]

        await client.create_group("by-hand-async", topic, start="earliest")
        group = "by-hand-async"
        one = (await client.receive(group, "m", max_messages=4, wait_ms=10_000)).messages
        receipts = [each.receipt or "" for each in one]
        seen["settled"] = [
            await client.ack(group, receipts[:1]),
            await client.nack(group, receipts[1:2], delay_ms=0),
            await client.release(group, receipts[2:3]),
            await client.extend(group, receipts[3:], lease_ms=60_000),
            await client.ack(group, receipts[:1]),
        ]
        again = (await client.receive(group, "m", max_messages=2, wait_ms=10_000)).messages
        seen["again"] = sorted(each.attempt for each in again)
        seen["are_the_same"] = {(each.queue, each.offset) for each in again} == {
            (each.queue, each.offset) for each in one[1:3]
        }
        await client.leave_group(group, "m")

        seen["consumed"] = 0
        async with client.consume(topic, "consumers-async", start="earliest") as deliveries:
            async for delivery in deliveries:
                delivery.ack()
                seen["consumed"] += 1
                if seen["consumed"] == 1002:
                    break
        seen["lag"] = (await client.describe_group("consumers-async")).lag_messages

        stored = await client.store_offsets("by-offsets-async", topic, {0: 1000})
        kept = await client.stored_offsets("by-offsets-async", topic)
        seen["stored"] = kept.offsets == stored.offsets
        async with client.consume_by_offsets(topic, "by-offsets-async", follow=False) as rest:
            seen["by_offsets"] = [each.body.decode() async for each in rest]
        try:
            await client.describe_topic(f"{topic}.none")
        except holdfast.errors.UnknownTopic:
            seen["unknown"] = True
        return seen


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(*sys.argv[1:]))))
