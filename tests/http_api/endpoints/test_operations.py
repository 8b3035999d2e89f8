import pytest

from holdfast.consumequeue.damage.damage_book import Fault
from holdfast.groups.settings import GroupSettings, Subscription
from holdfast.http_api.app import BrokerStatus
from holdfast.http_api.routes import ROUTES
from tests.support.servers.api_server import Api

OPEN = {"/healthz", "/readyz", "/metrics", "/openapi.json"}


async def test_health_and_readiness(api: Api) -> None:
    assert (await api.get("/healthz")).json() == {"status": "alive"}
    answer = await api.get("/readyz")
    assert answer.json() == {"phase": "ready", "degraded": [], "read_only": None, "alarms": {}}


async def test_a_degraded_broker_is_ready_and_reports_its_faults(api: Api) -> None:
    api.status = BrokerStatus(
        "ready", (Fault("bad-magic", "a bad block"),), "a sync failed", {"disk": "too full"}
    )
    answer = await api.get("/readyz")
    assert answer.status == 200
    assert answer.json() == {
        "phase": "ready",
        "degraded": [{"reason": "bad-magic", "detail": "a bad block"}],
        "read_only": "a sync failed",
        "alarms": {"disk": "too full"},
    }


async def test_a_recovering_broker_reports_its_progress(api: Api) -> None:
    api.status = BrokerStatus("recovering", progress={"done_bytes": 5, "total_bytes": 10})
    answer = await api.get("/readyz")
    assert (answer.status, answer.problem) == (503, "recovering")
    assert answer.json()["progress"] == {"done_bytes": 5, "total_bytes": 10}
    assert answer.json()["phase"] == "recovering"
    assert answer.headers["Retry-After"] == "1"
    api.status = BrokerStatus("ready")


@pytest.mark.parametrize("phase", ["recovering", "draining"])
async def test_only_operations_are_served_in_every_phase(api: Api, phase: str) -> None:
    """During recovery the store is not used: it may not exist yet."""
    store = api.context.store
    if phase == "recovering":
        api.context.store = None  # type: ignore[assignment]
    api.status = BrokerStatus(phase)
    for route in ROUTES:
        path = route.path.replace("{topic}", "orders").replace("{group}", "g")
        path = path.replace("{queue}", "0").replace("{message_id}", "0" * 32)
        answer = await api.ask(route.method, path)
        if path in OPEN - {"/readyz"}:
            assert answer.status == 200, path
        else:
            assert (answer.status, answer.problem) == (503, phase), path
    assert {route.path for route in ROUTES if route.is_open} == OPEN
    api.context.store = store
    api.status = BrokerStatus("ready")


async def test_info_describes_the_broker(api: Api) -> None:
    answer = await api.get("/v1/info")
    assert answer.json() == {"name": "holdfast", "version": "9.9.9", "data_dir": "/nowhere"}


async def test_every_get_route_answers_head(api: Api) -> None:
    await api.publish("orders", {"body": "x", "queue": 0})
    await api.store.offsets.store_offsets("g", api.store.table.get("orders"), {0: 1})
    await api.groups.put_group("g", GroupSettings(topics={"orders": Subscription()}))
    message_id = f"{1:08X}{0:08X}{0:016X}"
    queries = {
        "/v1/topics/{topic}/queues/{queue}/messages": "?offset=0",
        "/v1/topics/{topic}/messages": "?offsets=0:0",
        "/v1/topics/{topic}/queues/{queue}/offset": "?timestamp_ms=0",
        "/v1/topics/{topic}/messages/search": "?key=k",
    }
    for route in ROUTES:
        if route.method == "GET":
            path = route.path.replace("{topic}", "orders").replace("{group}", "g")
            path = path.replace("{queue}", "0").replace("{message_id}", message_id)
            path += queries.get(route.path, "")
            head = await api.ask("HEAD", path)
            assert (head.status, head.body) == (200, b""), path
            assert int(head.headers["Content-Length"]) > 0


async def test_a_wrong_method_gets_the_allowed_methods(api: Api) -> None:
    answer = await api.ask("POST", "/v1/topics/orders")
    assert (answer.status, answer.problem) == (405, "method-not-allowed")
    assert answer.headers["Allow"] == "DELETE, GET, HEAD, PATCH, PUT"
    answer = await api.ask("OPTIONS", "/v1/topics/orders/messages")
    assert answer.headers["Allow"] == "GET, HEAD, POST"
