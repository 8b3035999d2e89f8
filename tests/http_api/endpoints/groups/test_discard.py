"""Discarding dead letters: they count as done without being published."""

from typing import Any

from tests.support.clients.tokens import let_in
from tests.support.servers.api_server import Api

REDRIVE = "/v1/groups/billing/redrive"


async def redrive(api: Api, body: dict[str, Any], **headers: str) -> Any:
    answer = await api.send_json("POST", REDRIVE, body, **headers)
    assert answer.status == 200, answer.body
    return answer.json()


async def make_letters(api: Api, count: int) -> None:
    """Make dead letters of the group "billing" in the topic "dead"."""
    await api.store.topics.create("dead", queues=1)
    await api.publish("orders", *({"body": str(number), "queue": 0} for number in range(count)))
    settings = {"topics": {"orders": {}}, "dead_letter_topic": "dead"}
    await api.send_json("PUT", "/v1/groups/billing", settings)
    body = {"member": "m", "max_messages": count}
    messages = (await api.send_json("POST", "/v1/groups/billing/receive", body)).json()["messages"]
    receipts = {"receipts": [each["receipt"] for each in messages]}
    await api.send_json("POST", "/v1/groups/billing/reject", receipts)
    for offset in range(count):  # the broker appends them shortly after its answer
        letter = await api.get(f"/v1/topics/dead/queues/0/messages?offset={offset}&wait_ms=20000")
        assert letter.json()["messages"]


async def test_discarded_letters_are_never_put_back(api: Api) -> None:
    await make_letters(api, 5)
    plan = await redrive(api, {"discard": True, "dry_run": True})
    assert (plan["discarded"], plan["redriven"], plan["stuck"]) == (5, 0, 0)
    done = await redrive(api, {"discard": True, "offsets": {"0": [1, 3]}})
    assert (done["discarded"], done["redriven"], done["topics"]) == (2, 0, {})
    plan = await redrive(api, {"discard": True, "dry_run": True})
    assert plan["discarded"] == 3
    done = await redrive(api, {"discard": True, "limit": 1})
    assert (done["discarded"], done["more"]) == (1, True)
    done = await redrive(api, {})
    assert (done["redriven"], "discarded" in done) == (2, False)
    done = await redrive(api, {"discard": True})
    assert (done["discarded"], done["more"]) == (0, False)
    orders = (await api.get("/v1/topics/orders")).json()
    assert orders["queues"][0]["max_offset"] == 7
    letters = (await api.get("/v1/topics/dead")).json()
    assert letters["queues"][0]["max_offset"] == 5


async def test_letters_that_cannot_be_put_back_can_be_discarded(api: Api) -> None:
    await make_letters(api, 2)
    await api.send_json("PUT", "/v1/groups/billing", {"topics": {"other": {}}})
    plan = await redrive(api, {"dry_run": True})
    assert (plan["redriven"], plan["stuck"]) == (0, 2)
    assert (await redrive(api, {"discard": True}))["discarded"] == 2
    plan = await redrive(api, {"dry_run": True})
    assert (plan["redriven"], plan["stuck"]) == (0, 0)


async def test_discarding_needs_no_right_to_publish(api: Api) -> None:
    await make_letters(api, 1)
    header = let_in(api, "consume:*:billing")
    assert (await api.send_json("POST", REDRIVE, {}, **header)).problem == "forbidden"
    assert (await redrive(api, {"discard": True}, **header))["discarded"] == 1
    header = let_in(api, "consume:orders:billing")  # nothing on the dead-letter topic
    answer = await api.send_json("POST", REDRIVE, {"discard": True}, **header)
    assert answer.problem == "forbidden"
