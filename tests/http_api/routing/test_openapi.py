"""The served document compared with the code: everything is described, and all references
resolve."""

import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from holdfast.http_api.config import HttpConfig
from holdfast.http_api.routes import ROUTES
from holdfast.http_api.routing.openapi import openapi_document
from holdfast.http_api.routing.openapi_fields import FIELDS, PROBLEM_MEMBERS
from holdfast.http_api.routing.params import PAIRS_PATTERN, declared
from holdfast.http_api.wire.problems import _RULES, KINDS
from tests.http_api import test_bad_input
from tests.http_api.endpoints.groups import test_groups_bad_input
from tests.support.servers.api_server import Api

DOCUMENT = msgspec.json.decode(openapi_document(ROUTES, HttpConfig(max_wait_ms=1234), "1.2.3"))

OPERATIONS = [
    (path, method, operation)
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
]


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"]
        for each in value.values():
            yield from references(each)
    elif isinstance(value, list):
        for each in value:
            yield from references(each)


def test_the_document_is_openapi_3_1_of_this_version() -> None:
    assert DOCUMENT["openapi"] == "3.1.0"
    assert DOCUMENT["info"]["version"] == "1.2.3"


def test_every_reference_leads_somewhere() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    found = set(references(DOCUMENT))
    assert {reference.removeprefix("#/components/schemas/") for reference in found} <= set(schemas)
    assert "#/components/schemas/Problem" in found


def test_every_route_is_an_operation_with_its_own_id() -> None:
    assert {(path, method.upper()) for path, method, _ in OPERATIONS} == {
        (route.path, route.method) for route in ROUTES
    }
    ids = [operation["operationId"] for *_, operation in OPERATIONS]
    assert len(ids) == len(set(ids))
    assert all(operation["summary"].endswith((".", ":")) for *_, operation in OPERATIONS)


def test_every_path_parameter_is_described() -> None:
    for path, _, operation in OPERATIONS:
        described = [p["name"] for p in operation["parameters"] if p["in"] == "path"]
        assert described == re.findall(r"{(\w+)}", path)


def test_every_query_parameter_is_described_with_the_configured_bounds() -> None:
    for route in ROUTES:
        operation = DOCUMENT["paths"][route.path][route.method.lower()]
        described = {p["name"]: p for p in operation["parameters"] if p["in"] == "query"}
        assert list(described) == list(declared(route.params))
        if "wait_ms" in described:
            assert described["wait_ms"]["schema"]["maximum"] == 1234
            assert described["max_messages"]["schema"]["default"] == 32


def test_required_parameters_are_declared_required() -> None:
    required = {
        (operation["operationId"], each["name"])
        for _, _, operation in OPERATIONS
        for each in operation["parameters"]
        if each["in"] != "path" and each.get("required")
    }
    assert required == {
        ("get_offset", "timestamp_ms"),
        ("search_messages", "key"),
        ("delete_topic", "confirm"),
        ("delete_group", "confirm"),
    }
    with_body = {
        operation["operationId"]
        for _, _, operation in OPERATIONS
        if operation.get("requestBody", {}).get("required")
    }
    settling = {"ack", "nack", "release", "extend", "reject"}
    moving = {"seek_group", "leave_group"}
    assert with_body == {
        "put_offsets",
        "reset_offsets",
        "extend_read_lease",
        *settling,
        *moving,
    }


@pytest.mark.parametrize(
    ("given", "fits"), [("0:12", True), ("0:12,1:40", True), ("0", False), ("0:1,", False)]
)
def test_the_pattern_of_pairs_matches_the_parser(given: str, fits: bool) -> None:
    assert bool(re.search(PAIRS_PATTERN, given)) == fits


def test_every_kind_of_problem_is_known_to_the_document() -> None:
    kinds = DOCUMENT["components"]["schemas"]["Problem"]["properties"]["type"]["enum"]
    assert kinds == [f"/problems/{slug}" for slug in KINDS]


def test_every_kind_of_problem_is_declared_by_its_routes() -> None:
    told = {
        each.partition(":")[0]
        for _, _, operation in OPERATIONS
        for response in operation["responses"].values()
        for each in response["description"].split("; ")
    }
    # These problems occur where no route was found, or before a request was read.
    nowhere = {
        "not-found",
        "method-not-allowed",
        "too-many-connections",
        "too-many-client-connections",
    }
    assert KINDS.keys() - told == nowhere
    rated = DOCUMENT["paths"]["/v1/info"]["get"]["responses"]["429"]
    assert "Retry-After" in rated["headers"]


def test_names_that_are_refused_do_not_match_their_pattern() -> None:
    parameters = DOCUMENT["paths"]["/v1/topics/{topic}"]["get"]["parameters"]
    pattern = parameters[0]["schema"]["pattern"]
    assert re.search(pattern, "orders.dead-letter_1")
    assert not re.search(pattern, "a/b")


@pytest.mark.parametrize(
    "bad",
    [
        *test_bad_input.PATHS,
        *test_bad_input.PULLS,
        *test_bad_input.PUBLISHES,
        *test_bad_input.SETTINGS,
        *test_groups_bad_input.GROUPS,
    ],
    ids=lambda bad: f"{bad.method} {bad.path[:50]} {bad.problem}",
)
def test_every_refusal_is_described_for_its_operation(bad: test_bad_input.Bad) -> None:
    path = bad.path.partition("?")[0]
    for template, methods in DOCUMENT["paths"].items():
        pattern = re.sub(r"{\w+}", "[^/]+", template)
        if re.fullmatch(pattern, path) and bad.method.lower() in methods:
            response = methods[bad.method.lower()]["responses"].get(str(bad.status))
            assert response, (template, bad.status)
            assert f"{bad.problem}: " in response["description"]


async def test_the_document_is_served(api: Api) -> None:
    served = await api.get("/openapi.json")
    assert served.headers["Content-Type"] == "application/json"
    assert list(served.json()["paths"]) == list(DOCUMENT["paths"])


async def test_replies_are_as_described(api: Api) -> None:
    """The members of some real replies are those of their schemas."""
    await api.publish("orders", {"body": "x", "queue": 0})
    schemas = DOCUMENT["components"]["schemas"]
    for path, name in (
        ("/v1/topics/orders", "TopicReply"),
        ("/v1/topics", "TopicsReply"),
        ("/v1/topics/orders/queues/0/messages?offset=0", "PullReply"),
        ("/v1/topics/orders/messages?offsets=0:0", "PollReply"),
        ("/v1/topics/orders/splits", "SplitsReply"),
        ("/v1/groups", "GroupsReply"),
        ("/readyz", "ReadyReply"),
    ):
        reply = (await api.get(path)).json()
        schema = schemas[name]
        assert set(schema["required"]) <= set(reply) <= set(schema["properties"]), path


# -- H1: requirements of generated clients -----------------------------------------------------


def schemas_in(value: Any, at: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every object of the document that has a type, with its location."""
    if isinstance(value, dict):
        if isinstance(value.get("type"), str | list):
            yield at, value
        for name, each in value.items():
            yield from schemas_in(each, f"{at}/{name}")
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from schemas_in(each, f"{at}/{index}")


def test_every_whole_number_has_a_width() -> None:
    """Without a format a generated Go client uses int32, which is too small for offsets."""
    formats = {
        at: schema.get("format")
        for at, schema in schemas_in(DOCUMENT)
        if "integer" in ([schema["type"]] if isinstance(schema["type"], str) else schema["type"])
    }
    assert len(formats) > 200
    assert set(formats.values()) == {"int32", "int64"}
    properties = DOCUMENT["components"]["schemas"]["Message"]["properties"]
    assert properties["offset"]["format"] == "int64"
    assert properties["queue"]["format"] == "int32"


def test_no_schema_has_a_name_that_generators_make_themselves() -> None:
    names = set(DOCUMENT["components"]["schemas"])
    # Go needs names for constructors, and types for parameters, request and response.
    made = {f"New{name}" for name in names}
    for *_, operation in OPERATIONS:
        title = "".join(part.capitalize() for part in operation["operationId"].split("_"))
        made |= {f"{title}{kind}" for kind in ("Params", "Response", "JSONBody", "JSONRequestBody")}
        made |= {f"Api{title}Request"}
    assert not names & made
    assert all(re.fullmatch("[A-Z][A-Za-z]+", name) for name in names), names


def test_the_document_has_its_server_and_the_open_routes() -> None:
    assert [each["url"] for each in DOCUMENT["servers"]] == ["/"]
    open_to_all = {path for path, _, operation in OPERATIONS if operation["security"] == []}
    assert open_to_all == {"/healthz", "/readyz"}


def test_every_field_parameter_and_header_is_described() -> None:
    for name, schema in DOCUMENT["components"]["schemas"].items():
        assert schema["description"], name
        for field, each in schema.get("properties", {}).items():
            assert each.get("description"), f"{name}.{field}"
    for path, _, operation in OPERATIONS:
        for each in operation["parameters"]:
            assert each.get("description"), (path, each["name"])
        for response in operation["responses"].values():
            for header, each in response.get("headers", {}).items():
                assert each.get("description"), header


def test_only_existing_fields_are_described() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    fields = {field for schema in schemas.values() for field in schema.get("properties", ())}
    for name in FIELDS:
        schema, _, field = name.rpartition(".")
        assert field in (schemas[schema]["properties"] if schema else fields), name


def test_every_example_is_valid() -> None:
    for name, schema in DOCUMENT["components"]["schemas"].items():
        for field, each in schema.get("properties", {}).items():
            for example in each.get("examples", ()):
                if "enum" in each:
                    assert example in each["enum"], f"{name}.{field}"


def test_every_member_of_a_problem_is_in_its_schema() -> None:
    members = {member for rule in _RULES.values() for member in rule.members}
    assert members <= PROBLEM_MEMBERS.keys(), members - PROBLEM_MEMBERS.keys()
    schema = DOCUMENT["components"]["schemas"]["Problem"]
    assert schema["properties"].keys() > PROBLEM_MEMBERS.keys()
