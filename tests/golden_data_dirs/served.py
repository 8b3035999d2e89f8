"""All data that a broker serves, with the fields that the first release had, as one value."""

import hashlib
import json
from typing import Any
from urllib.request import Request, urlopen

_FIELDS = (
    *("topic", "queue", "offset", "message_id", "key", "tag", "properties"),
    *("body", "body_base64", "born_timestamp_ms", "store_timestamp_ms"),
)
_CONFIG = ("durability", "retention_ms", "retention_bytes", "max_message_bytes")


def call(url: str, path: str, body: object = None, *, verb: str | None = None) -> Any:
    """Return the reply's JSON. HTTPError passes through."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    with urlopen(Request(url + path, data, headers, method=verb), timeout=20) as response:
        return json.loads(response.read())


def everything(url: str) -> dict[str, Any]:
    """Return topics, ends and digests of queues, offsets of groups, and a search by key."""
    topics = {}
    for listed in call(url, "/v1/topics")["topics"]:
        topic = listed if isinstance(listed, str) else listed["topic"]
        described = call(url, f"/v1/topics/{topic}")
        topics[topic] = {
            "topic_id": described["topic_id"],
            "config": {name: described["config"].get(name) for name in _CONFIG},
            "queues": [
                {
                    "min_offset": queue["min_offset"],
                    "max_offset": queue["max_offset"],
                    "sha256": _digest(url, topic, queue),
                }
                for queue in described["queues"]
            ],
        }
    groups = {
        group: {topic: call(url, f"/v1/groups/{group}/topics/{topic}/offsets")["offsets"]}
        for group, topic in (("billing", "orders"), ("audit", "sealed"))
        if topic in topics
    }
    found = call(url, "/v1/topics/orders/messages/search?key=customer-3")["messages"]
    return {"topics": topics, "groups": groups, "search": [each["message_id"] for each in found]}


def _digest(url: str, topic: str, queue: dict[str, Any]) -> str:
    digest = hashlib.sha256()
    at = queue["min_offset"]
    while at < queue["max_offset"]:
        path = f"/v1/topics/{topic}/queues/{queue['queue']}/messages?offset={at}&max_messages=1000"
        reply = call(url, path)
        for message in reply["messages"]:
            fields = {name: message.get(name) for name in _FIELDS}
            digest.update(json.dumps(fields, sort_keys=True).encode() + b"\n")
        at = reply["next_offset"]
    return digest.hexdigest()
