"""Requests of the HTTP API to `/management`, by a client that others wrote."""

import json
from collections.abc import Callable

from tests.interop.amqp.clients import Client


def test_rhea_manages_topics(client: Callable[[str], Client], address: str) -> None:
    rhea = client("rhea")
    path = f"/v1/topics/{address}"
    (created,) = rhea.run("manage", requests=[["PUT", path, json.dumps({"queues": 3})]])["replies"]
    assert created[0] == "201"
    listed, found, refused = rhea.run(
        "manage",
        requests=[
            ["GET", f"/v1/topics?after={address[:-1]}", None],
            ["GET", path, None],
            ["PUT", path, "{"],
        ],
    )["replies"]
    assert listed[0] == "200"
    assert address in [each["topic"] for each in listed[1]["topics"]]
    assert (found[0], found[1]["queue_count"]) == ("200", 3)
    assert (refused[0], refused[1]["type"]) == ("400", "/problems/malformed-json")
