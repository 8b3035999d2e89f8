"""curl as a user types it: long polling, JSON, and curl's default content type for a body."""

import json
import subprocess
from typing import Any

import pytest

from holdfast.testing import RunningBroker
from tests.interop.toolchains import need, run


@pytest.fixture(autouse=True)
def _curl() -> None:
    need("curl")


def curl(broker: RunningBroker, path: str, *arguments: str) -> tuple[int, Any]:
    """Return the status and the answer, decoded."""
    printed = run(["curl", "-sS", "-w", "\n%{http_code}", *arguments, f"{broker.url}{path}"])
    body, _, status = printed.rpartition("\n")
    return int(status), json.loads(body)


def test_messages_are_published_and_pulled(broker: RunningBroker) -> None:
    curl(broker, "/v1/topics/curl", "-X", "PUT", "-d", '{"queues": 1}')
    messages = "/v1/topics/curl/messages"
    header = "content-type: application/json"
    two = '{"messages": [{"body": "one", "key": "a"}, {"body_base64": "AAE="}]}'
    assert curl(broker, messages, "-H", header, "-d", two)[0] == 200
    one = '{"body": "three"}'
    assert curl(broker, messages, "-H", header, "-d", one)[0] == 200
    assert curl(broker, f"{messages}?tag=raw", "-d", "any bytes")[0] == 200
    status, reply = curl(broker, "/v1/topics/curl/queues/0/messages?from=earliest")
    assert status == 200
    bodies = [each.get("body", each.get("body_base64")) for each in reply["messages"]]
    # AAE= is U+0000 and U+0001, which is valid text.
    assert bodies == ["one", "\0\x01", "three", "any bytes"]


def test_json_without_its_type_is_refused_with_the_mend(broker: RunningBroker) -> None:
    """H2: if it were stored as one raw message, it would look published."""
    body = '{"messages": [{"body": "one"}]}'
    status, problem = curl(broker, "/v1/topics/curl-form/messages", "-d", body)
    assert (status, problem["type"]) == (415, "/problems/unsupported-media-type")
    assert "content-type: application/json" in problem["detail"]


def test_a_pull_is_held_until_a_message_comes(broker: RunningBroker) -> None:
    curl(broker, "/v1/topics/curl-held", "-X", "PUT", "-d", '{"queues": 1}')
    path = "/v1/topics/curl-held/queues/0/messages?offset=0&wait_ms=30000"
    with subprocess.Popen(
        ["curl", "-sS", f"{broker.url}{path}"], stdout=subprocess.PIPE, text=True
    ) as held:
        curl(broker, "/v1/topics/curl-held/messages", "-d", "at last")
        printed, _ = held.communicate(timeout=60)
    assert [each["body"] for each in json.loads(printed)["messages"]] == ["at last"]


def test_a_stream_of_events_is_read_line_by_line(broker: RunningBroker) -> None:
    """H3: `curl -N`, which prints each part as it arrives."""
    curl(broker, "/v1/topics/curl-events", "-X", "PUT", "-d", '{"queues": 1}')
    curl(broker, "/v1/topics/curl-events/messages", "-d", "first")
    path = "/v1/topics/curl-events/messages?from=earliest"
    header = "Accept: text/event-stream"
    with subprocess.Popen(
        ["curl", "-sSN", "-H", header, f"{broker.url}{path}"], stdout=subprocess.PIPE, text=True
    ) as streaming:
        assert streaming.stdout is not None
        shown = iter(streaming.stdout)
        bodies = []
        for line in shown:
            if line.startswith("data: "):
                bodies.append(json.loads(line.removeprefix("data: "))["body"])
                if len(bodies) == 2:
                    break
                curl(broker, "/v1/topics/curl-events/messages", "-d", "second")
        streaming.terminate()
    assert bodies == ["first", "second"]
