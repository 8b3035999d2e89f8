"""Messages are delivered only to tokens that grant their topics, also when a group's topics
change."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.http_api.access.tokens import Token, Tokens
from tests.support.clients.tokens import bearer, make_token
from tests.support.servers.group_api import GroupApi, bodies, serving_groups, until

FORBIDDEN = (403, "forbidden")


class Clients:
    """Clients of one broker, each with its own token. The token of `api` grants everything."""

    def __init__(self, api: GroupApi) -> None:
        self.api = api
        self._tokens: list[Token] = []
        api.session.headers.update(bearer(self.token("all")))

    def token(self, *grants: str) -> str:
        """Create a token; return its text."""
        token, text = make_token(*grants)
        self._tokens.append(token)
        self._show()
        return text

    def revoke(self) -> None:
        """Revoke the newest token."""
        self._tokens.pop()
        self._show()

    async def ask(self, token: str, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Send a request with a token; return the status and the body of the reply."""
        asking = self.api.session.request(method, path, json=body, headers=bearer(token))
        async with asking as response:
            return response.status, await response.json(content_type=None)

    async def receive(self, token: str, group: str = "g", **body: Any) -> tuple[int, Any]:
        return await self.ask(token, "POST", f"/v1/groups/{group}/receive", body)

    @property
    def changes_lock(self) -> asyncio.Lock:
        """The lock that each change of a group holds."""
        assert self.api.broker._groups is not None
        return self.api.broker._groups.changes._lock

    def waiting(self, token: str, **body: Any) -> "asyncio.Task[tuple[int, Any]]":
        """Start a receive that waits for a minute, or until `end_of_wait`."""
        return asyncio.create_task(self.receive(token, wait_ms=60_000, **body))

    async def end_of_wait(self, held: "asyncio.Task[tuple[int, Any]]") -> tuple[int, Any]:
        """Skip the minute, after the group has offered all arrived messages."""
        await self.api.describe("h")
        self.api.later(61)
        return await held

    def _show(self) -> None:
        assert self.api.broker._access is not None
        access = self.api.broker._access.access
        access.is_required, access.tokens = True, Tokens(self._tokens)


@pytest.fixture
async def clients(tmp_path: Path) -> AsyncIterator[Clients]:
    """Yield clients of a broker with the topics "a.pub" and "b.secret", both in the group "g"."""
    async with serving_groups(tmp_path / "data") as api:
        clients = Clients(api)
        for topic in ("a.pub", "b.secret"):
            await api.topic(topic)
        await api.group(topics={"a.pub": {}, "b.secret": {}})
        yield clients


@pytest.fixture
def api(clients: Clients) -> GroupApi:
    return clients.api


async def in_flight(api: GroupApi, topic: int, group: str = "g") -> int:
    found: int = (await api.queue(topic=topic, group=group))["in_flight"]
    return found


# -- S1: a repeated attempt delivers messages of topics that are not granted -----------------------


@pytest.mark.parametrize("member", ["m", None])
async def test_a_repeated_attempt_delivers_only_topics_that_the_token_grants(
    clients: Clients, api: GroupApi, member: str | None
) -> None:
    await api.publish("secret", topic="b.secret")
    await api.publish("public", topic="a.pub")
    who: dict[str, Any] = {"attempt_id": "1"} if member is None else {
        "member": member, "attempt_id": "1"
    }  # fmt: skip
    first = await api.ask("POST", "/v1/groups/g/receive", who)
    assert sorted(bodies(first)) == ["public", "secret"]
    narrow = clients.token("consume:a.:=g")
    assert (await clients.receive(narrow, **who))[0] == 403
    status, again = await clients.receive(narrow, topics=["a.pub"], **who)
    assert (status, bodies(again)) == (200, ["public"])
    repeated = await api.ask("POST", "/v1/groups/g/receive", who)
    assert sorted(bodies(repeated)) == ["public", "secret"], "whose attempt it was gets all of it"


async def test_a_repeated_attempt_delivers_only_topics_that_it_names(
    clients: Clients, api: GroupApi
) -> None:
    await api.publish("secret", topic="b.secret")
    assert bodies(await api.receive(attempt_id="1")) == ["secret"]
    again = await api.receive(attempt_id="1", topics=["a.pub"])
    assert (bodies(again), again["available"]) == ([], 0)


async def test_an_attempt_belongs_to_one_member(clients: Clients, api: GroupApi) -> None:
    await api.publish("public", topic="a.pub")
    assert bodies(await api.receive("m", attempt_id="1")) == ["public"]
    assert bodies(await api.receive("n", attempt_id="1")) == []


# -- S2: a held receive delivers messages of topics that the group got meanwhile -------------------


@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("how", ["the group is changed", "a pattern finds a topic"])
async def test_a_held_receive_gets_nothing_of_a_topic_that_the_group_got_meanwhile(
    clients: Clients, api: GroupApi, how: str, settled: bool
) -> None:
    narrow = clients.token("consume:a.:=h")
    is_changed = how == "the group is changed"
    topic = "b.secret" if is_changed else "b.new.1"
    await api.group("h", {"a.pub": {}} if is_changed else {"a.pub": {}, "b.new*": {}})
    held = clients.waiting(narrow, group="h", settled=settled)
    await api.held(1)
    if is_changed:
        await api.group("h", {"a.pub": {}, "b.secret": {}})
    else:
        await api.topic(topic)
    await api.publish("secret", topic=topic)
    status, problem = await clients.end_of_wait(held)
    assert (status, topic in str(problem)) == (403, False)
    assert await in_flight(api, 1, "h") == 0
    got = await api.receive(group="h")
    assert bodies(got) == ["secret"]
    assert (got["messages"][0]["attempt"], got["messages"][0]["redelivered"]) == (1, False)


async def test_a_held_receive_gets_granted_topics_of_a_wider_group(
    clients: Clients, api: GroupApi
) -> None:
    await api.group("h", {"a.*": {}})
    narrow = clients.token("consume:a.:=h")
    held = clients.waiting(narrow, group="h")
    await api.held(1)
    await api.group("h", {"a.*": {}, "b.secret": {}})
    await api.publish("secret", topic="b.secret")
    await api.topic("a.new")
    await api.publish("new", topic="a.new")
    status, got = await held
    assert (status, bodies(got)) == (200, ["new"])
    assert got["available"] == 0, "what is not granted is not counted for this token"
    assert (await clients.receive(narrow, "h"))[0] == 403


@pytest.mark.parametrize("mode", ["single_active", "exclusive", "keyed"])
async def test_a_held_receive_of_any_mode_gets_only_granted_topics(
    clients: Clients, api: GroupApi, mode: str
) -> None:
    await api.group("h", {"a.pub": {}}, mode=mode)
    narrow = clients.token("consume:a.:=h")
    held = clients.waiting(narrow, group="h", member="m")
    await api.held(1)
    await api.group("h", {"a.pub": {}, "b.secret": {}})
    await api.publish("secret", topic="b.secret")
    assert (await clients.end_of_wait(held))[0] == 403
    assert await in_flight(api, 1, "h") == 0


async def test_a_receive_after_one_without_the_grant_gets_the_message(
    clients: Clients,
    api: GroupApi,
) -> None:
    await api.group("h", {"a.pub": {}})
    narrow = clients.token("consume:a.:=h")
    first = clients.waiting(narrow, group="h")
    await api.held(1)
    wide = clients.token("consume:*:=h")
    second = clients.waiting(wide, group="h")
    await api.held(2)
    await api.group("h", {"a.pub": {}, "b.secret": {}})
    await api.publish("secret", topic="b.secret")
    status, got = await second
    assert (status, bodies(got)) == (200, ["secret"])
    await api.publish("public", topic="a.pub")
    status, got = await first
    assert (status, bodies(got)) == (200, ["public"])


async def test_a_held_settled_receive_of_a_revoked_token_settles_nothing(
    clients: Clients, api: GroupApi
) -> None:
    await api.group("h", {"a.pub": {}})
    token = clients.token("consume:a.:=h")
    held = clients.waiting(token, group="h", settled=True)
    await api.held(1)
    clients.revoke()
    await api.publish("public", topic="a.pub")
    assert (await clients.end_of_wait(held))[0] == 401
    assert bodies(await api.receive(group="h")) == ["public"]


# -- similar to S2: other operations on all topics of a group after its grants were checked --------


async def test_a_seek_moves_no_topic_that_the_group_got_while_it_began(
    clients: Clients, api: GroupApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    await api.publish("secret", topic="b.secret")
    await api.group("h", {"a.pub": {}}, start="latest")
    narrow = clients.token("consume:a.:=h")
    assert api.broker._groups is not None
    watch = api.broker._groups.registry.by_name["h"].watch
    catch_up, may_go_on, has_begun = watch.catch_up, asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        has_begun.set()
        await may_go_on.wait()
        await catch_up()

    monkeypatch.setattr(watch, "catch_up", slow)
    seeking = asyncio.create_task(
        clients.ask(narrow, "POST", "/v1/groups/h/seek", {"to": "earliest"})
    )
    await has_begun.wait()
    monkeypatch.setattr(watch, "catch_up", catch_up)
    await api.group("h", {"a.pub": {}, "b.secret": {}})
    may_go_on.set()
    status, problem = await seeking
    assert (status, "b.secret" in str(problem)) == (403, False)
    assert bodies(await api.receive(group="h")) == []


@pytest.mark.parametrize("how", ["PUT", "DELETE"])
async def test_a_change_that_waits_is_checked_against_the_changed_group(
    clients: Clients, api: GroupApi, how: str
) -> None:
    await api.group("h", {"a.pub": {}})
    narrow = clients.token("admin:a.:=h")
    path = "/v1/groups/h" if how == "PUT" else "/v1/groups/h?confirm=h"
    body: Any = {"topics": {"a.pub": {}}} if how == "PUT" else None
    lock = clients.changes_lock
    async with lock:
        wider = asyncio.create_task(api.group("h", {"a.pub": {}, "b.secret": {}}))
        await until(lambda: waits(lock, 1))
        changing = asyncio.create_task(clients.ask(narrow, how, path, body))
        await until(lambda: waits(lock, 2))
    await wider
    assert (await changing)[0] == 403
    assert [each["topic"] for each in (await api.describe("h"))["topics"]] == ["a.pub", "b.secret"]


async def stored_on(api: GroupApi, topic: str, group: str = "h") -> dict[str, int]:
    reply = await api.ask("GET", f"/v1/groups/{group}/topics/{topic}/offsets")
    found: dict[str, int] = reply["offsets"]
    return found


async def delete(clients: Clients, token: str, group: str = "h") -> tuple[int, str]:
    status, reply = await clients.ask(token, "DELETE", f"/v1/groups/{group}?confirm={group}")
    return status, str(reply)


@pytest.mark.parametrize("has_leases", [True, False])
async def test_a_group_is_deleted_only_with_all_topics_on_which_it_has_stored_offsets(
    clients: Clients, api: GroupApi, has_leases: bool
) -> None:
    for topic in ("a.pub", "b.secret"):
        path = f"/v1/groups/h/topics/{topic}/offsets"
        await api.ask("PUT", path, {"offsets": {"0": 0}})
    if has_leases:
        await api.group("h", {"a.pub": {}})
    narrow = clients.token("admin:a.:=h")
    status, text = await delete(clients, narrow)
    assert (status, "b.secret" in text) == (403, False)
    assert await stored_on(api, "b.secret") == {"0": 0}
    assert (await delete(clients, clients.token("admin:*:=h")))[0] == 200
    assert await api.refused("GET", "/v1/groups/h") == (404, "unknown-group")


async def test_offsets_stored_while_a_deletion_waits_need_its_grants(
    clients: Clients,
    api: GroupApi,
) -> None:
    await api.group("h", {"a.pub": {}})
    narrow = clients.token("admin:a.:=h")
    lock = clients.changes_lock
    async with lock:
        deleting = asyncio.create_task(delete(clients, narrow))
        await until(lambda: waits(lock, 1))
        path = "/v1/groups/h/topics/b.secret/offsets"
        await api.ask("PUT", path, {"offsets": {"0": 0}})
    assert (await deleting)[0] == 403
    assert [each["topic"] for each in (await api.describe("h"))["topics"]] == ["a.pub"]
    assert await stored_on(api, "b.secret") == {"0": 0}


@pytest.mark.parametrize("has_leases", [True, False])
async def test_offsets_stored_while_a_group_is_being_deleted_stay(
    clients: Clients, monkeypatch: pytest.MonkeyPatch, has_leases: bool
) -> None:
    api, storage = clients.api, clients.api.broker._storage
    assert storage is not None
    store = storage.store
    await api.ask("PUT", "/v1/groups/h/topics/a.pub/offsets", {"offsets": {"0": 0}})
    if has_leases:
        await api.group("h", {"a.pub": {}})
    forget_offsets, may_go_on, has_begun = (
        store.offsets.forget_offsets,
        asyncio.Event(),
        asyncio.Event(),
    )

    async def slow(*args: Any) -> None:
        has_begun.set()
        await may_go_on.wait()
        await forget_offsets(*args)

    monkeypatch.setattr(store.offsets, "forget_offsets", slow)
    deleting = asyncio.create_task(delete(clients, clients.token("admin:a.:=h")))
    await has_begun.wait()
    await api.ask("PUT", "/v1/groups/h/topics/b.secret/offsets", {"offsets": {"0": 0}})
    may_go_on.set()
    assert (await deleting)[0] == 200
    assert [each["topic"] for each in (await api.describe("h"))["topics"]] == ["b.secret"]


async def test_a_change_that_waits_names_no_dead_letters_topic_that_its_token_may_not_publish_to(
    clients: Clients,
    api: GroupApi,
) -> None:
    await api.topic("dead")
    await api.group("h", {"a.pub": {}}, dead_letter_topic="dead")
    narrow = clients.token("admin:a.:=h")
    change = narrow, "PUT", "/v1/groups/h", {"dead_letter_topic": "dead"}
    assert (await clients.ask(*change))[0] == 200, "the topic stays the same"
    lock = clients.changes_lock
    async with lock:
        without = asyncio.create_task(api.ask("PUT", "/v1/groups/h", {"dead_letter_topic": None}))
        await until(lambda: waits(lock, 1))
        changing = asyncio.create_task(clients.ask(*change))
        await until(lambda: waits(lock, 2))
    await without
    assert (await changing)[0] == 403
    assert (await api.describe("h"))["config"]["dead_letter_topic"] is None


async def waits(lock: asyncio.Lock, count: int) -> bool:
    return len(getattr(lock, "_waiters", None) or ()) == count


# -- a dead-letter topic leaves the patterns of groups: only for clients that may change the groups
# --


@pytest.mark.parametrize(
    ("grants", "may"),
    [
        (("consume:=b.secret:=mine", "publish:=a.pub"), False),
        (("consume:=b.secret:=mine", "publish:=a.pub", "consume:=a.pub:=mine"), False),
        (("consume:=b.secret:=mine", "publish:=a.pub", "consume:=a.pub:=all"), True),
    ],
)
async def test_a_token_takes_no_topic_from_groups_that_it_may_not_change(
    clients: Clients, api: GroupApi, grants: tuple[str, ...], may: bool
) -> None:
    await api.group("all", topics={"a.*": {}})
    await api.publish("public", topic="a.pub")
    token = clients.token(*grants)
    settings = {"topics": {"b.secret": {}}, "dead_letter_topic": "a.pub"}
    status, reply = await clients.ask(token, "PUT", "/v1/groups/mine", settings)
    assert status == (201 if may else 403), reply
    if not may:
        assert reply["type"] == "/problems/forbidden"
        assert "'all'" not in str(reply)
        assert "pattern" in reply["detail"]
        assert bodies(await api.receive(group="all")) == ["public"]
        return
    assert bodies(await api.receive(group="all")) == []
    assert (await delete(clients, clients.token("all"), "mine"))[0] == 200
    assert bodies(await api.receive(group="all")) == ["public"]


# -- a member leaves: only the topics that the token grants ----------------------------------------


async def leave(clients: Clients, token: str, member: str = "bob") -> tuple[int, str]:
    status, reply = await clients.ask(token, "POST", "/v1/groups/g/leave", {"member": member})
    return status, str(reply)


async def members(api: GroupApi) -> list[str]:
    return [each["member"] for each in (await api.describe())["members"]]


async def held_by_bob(api: GroupApi) -> None:
    await api.publish("1", "2", topic="a.pub")
    await api.publish("3", "4", topic="b.secret")
    assert len(bodies(await api.receive("bob"))) == 4


@pytest.mark.parametrize("grant", ["consume:=zz:=g", "consume:a.:=h", "admin:*:=g"])
async def test_a_token_without_the_groups_topics_removes_no_member(
    clients: Clients, api: GroupApi, grant: str
) -> None:
    await held_by_bob(api)
    status, text = await leave(clients, clients.token(grant))
    assert status == 403
    assert "a.pub" not in text
    assert "b.secret" not in text
    assert (await in_flight(api, 0), await in_flight(api, 1)) == (2, 2)


async def test_leaving_gives_back_only_topics_that_the_token_grants(
    clients: Clients, api: GroupApi
) -> None:
    await held_by_bob(api)
    narrow, other = clients.token("consume:=a.pub:=g"), clients.token("consume:=b.secret:=g")
    assert (await leave(clients, narrow))[0] == 200
    assert (await in_flight(api, 0), await in_flight(api, 1)) == (0, 2)
    assert await members(api) == ["bob"]
    assert (await leave(clients, other))[0] == 200
    assert await in_flight(api, 1) == 0
    assert await members(api) == []


async def test_leaving_ends_only_receives_of_topics_that_the_token_grants(
    clients: Clients,
    api: GroupApi,
) -> None:
    everything = api.waiting("bob")
    public = api.waiting("bob", topics=["a.pub"])
    await api.held(2)
    narrow = clients.token("consume:=a.pub:=g")
    assert (await leave(clients, narrow))[0] == 200
    assert bodies(await public) == []
    await api.held(1)
    assert await members(api) == ["bob"]
    assert (await leave(clients, clients.token("consume:*:=g")))[0] == 200
    assert bodies(await everything) == []
    assert await members(api) == []


async def test_an_exclusive_member_is_removed_with_its_last_lease(
    clients: Clients,
    api: GroupApi,
) -> None:
    await api.group(topics={"a.pub": {}, "b.secret": {}}, mode="exclusive")
    await held_by_bob(api)
    assert (await leave(clients, clients.token("consume:=a.pub:=g")))[0] == 200
    refused = await api.refused("POST", "/v1/groups/g/receive", {"member": "eve"})
    assert refused == (409, "group-exclusive")
    assert (await leave(clients, clients.token("consume:=b.secret:=g")))[0] == 200
    assert len(bodies(await api.receive("eve"))) == 4


# -- a group's description has only the topics that the token grants -------------------------------


@pytest.mark.parametrize(
    ("grants", "topics", "in_flight", "members", "letters"),
    [
        (("consume:=zz:=g",), [], 0, [], None),
        (("consume:=a.pub:=g",), ["a.pub"], 2, [], None),
        (("consume:=a.pub:=g", "publish:=dead"), ["a.pub"], 2, [], "dead"),
        (("consume:a.:=g", "admin:b.:=g"), ["a.pub", "b.secret"], 4, ["bob"], None),
        (("consume:*:=g",), ["a.pub", "b.secret"], 4, ["bob"], "dead"),
    ],
)
async def test_a_group_is_described_with_the_granted_topics(
    clients: Clients,
    api: GroupApi,
    grants: tuple[str, ...],
    topics: list[str],
    in_flight: int,
    members: list[str],
    letters: str | None,
) -> None:
    await api.topic("dead")
    await api.group(topics={"a.pub": {}, "b.secret": {}}, dead_letter_topic="dead")
    await held_by_bob(api)
    status, reply = await clients.ask(clients.token(*grants), "GET", "/v1/groups/g")
    assert status == 200
    assert [each["topic"] for each in reply["topics"]] == topics
    assert list(reply["config"]["topics"]) == topics
    assert reply["config"]["dead_letter_topic"] == letters
    assert reply["in_flight"] == in_flight
    assert [each["member"] for each in reply["members"]] == members
