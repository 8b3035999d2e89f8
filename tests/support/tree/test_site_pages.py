"""Links of the documentation site, and its generated pages."""

import json
from pathlib import Path
from urllib.request import urlopen

import pytest

from holdfast import __version__
from holdfast.http_api.config import HttpConfig
from holdfast.http_api.routes import ROUTES
from holdfast.http_api.routing.openapi import openapi_document
from holdfast.testing import RunningBroker
from tests.support.tree.site_pages import (
    OUTSIDE,
    decisions,
    http_reference,
    repository_path,
    with_site_links,
)

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("source", "link", "expected"),
    [
        ("docs/http.md", "[a](groups.md#modes)", "[a](groups.md#modes)"),
        ("docs/glossary.md", "[a](../ARCHITECTURE.md)", "[a](architecture.md)"),
        ("docs/tutorials/replay.md", "[a](../../README.md)", "[a](../readme.md)"),
        ("docs/tutorials/replay.md", "[a](../spark.md#clusters)", "[a](../spark.md#clusters)"),
        ("README.md", "[a](docs/spark.md)", "[a](spark.md)"),
        ("README.md", "[a](docs/adr)", "[a](adr/README.md)"),
        ("README.md", "[a](docs/tutorials/)", "[a](tutorials/README.md)"),
        ("README.md", "![a](docs/images/a.png)", "![a](images/a.png)"),
        ("README.md", "[![a](docs/images/a.png)](docs/http.md)", "[![a](images/a.png)](http.md)"),
        ("CONTRIBUTING.md", "[a](LICENSE), [b](FORMAT.md)", "a, [b](format.md)"),
        ("FORMAT.md", "[a](tests/commitlog/golden)", "a"),
        ("examples/README.md", "[a](../docs/spark.md)", "[a](spark.md)"),
        ("examples/README.md", "[a](spark_sessions.py)", "a"),
        ("docs/adr/README.md", "[a](0001-one.md)", "[a](0001-one.md)"),
        ("docs/http.md", "[a](https://semver.org/x)", "[a](https://semver.org/x)"),
        ("docs/http.md", "[a](#errors)", "[a](#errors)"),
    ],
)
def test_links_of_the_repository_become_links_of_the_site(
    source: str, link: str, expected: str
) -> None:
    assert with_site_links(f"one {link} two", source) == f"one {expected} two"


def test_links_in_code_stay() -> None:
    page = "```text\n[a](../FORMAT.md)\n```\n[a](../FORMAT.md)"
    assert with_site_links(page, "docs/x.md") == "```text\n[a](../FORMAT.md)\n```\n[a](format.md)"


def test_a_page_of_the_site_knows_its_place_in_the_repository() -> None:
    assert repository_path("format.md") == "FORMAT.md"
    assert repository_path("tutorials/spark.md") == "docs/tutorials/spark.md"
    assert all((ROOT / outside).is_file() for outside in OUTSIDE)


def test_decisions_are_listed_by_number() -> None:
    page = decisions({"0002-b.md": "2. B", "0001-a.md": "1. A"})
    assert page.endswith("\n- [1. A](0001-a.md)\n- [2. B](0002-b.md)\n")


def test_the_document_of_the_reference_is_the_served_one(holdfast_broker: RunningBroker) -> None:
    with urlopen(f"{holdfast_broker.url}/openapi.json", timeout=60) as reply:
        served = json.load(reply)
    assert json.loads(openapi_document(ROUTES, HttpConfig(), __version__)) == served


def test_the_http_reference_has_every_operation_and_schema() -> None:
    document = json.loads(openapi_document(ROUTES, HttpConfig(), __version__))
    page = http_reference(document)
    for path, operations in document["paths"].items():
        for method in operations:
            assert f"### `{method.upper()} {path}` {{ #" in page
    for name in document["components"]["schemas"]:
        assert f"### {name} {{ #schema-" in page


def test_an_operation_is_shown_with_its_parameters_bodies_and_problems() -> None:
    page = http_reference(
        {
            "info": {"version": "1.2"},
            "paths": {
                "/v1/things/{thing}": {
                    "put": {
                        "operationId": "putThing",
                        "tags": ["things"],
                        "summary": "Store a thing.",
                        "parameters": [
                            {
                                "name": "thing",
                                "in": "path",
                                "required": True,
                                "description": "A <name>, a|b.",
                                "schema": {"type": "string"},
                            },
                            {
                                "name": "count",
                                "in": "query",
                                "schema": {"type": "integer", "minimum": 1, "maximum": 9},
                            },
                        ],
                        "requestBody": {
                            "content": {
                                "application/json": {"schema": {"$ref": "#/x/ThingOne"}},
                                "application/msgpack": {"schema": {"$ref": "#/x/ThingOne"}},
                            }
                        },
                        "responses": {
                            "200": {"description": "Done."},
                            "404": {"description": "unknown-thing: none"},
                        },
                    }
                }
            },
            "components": {
                "schemas": {
                    "ThingOne": {
                        "description": "A thing.",
                        "properties": {
                            "kind": {"enum": ["a", "b"], "description": "Which."},
                            "parts": {"type": "array", "items": {"$ref": "#/x/Part"}},
                            "texts": {
                                "type": "object",
                                "additionalProperties": {"type": ["string", "null"]},
                            },
                            "next": {"anyOf": [{"$ref": "#/x/Part"}, {"type": "null"}]},
                        },
                        "required": ["kind"],
                    },
                    "Part": {"type": "string"},
                }
            },
        }
    )
    body = "`application/json`, `application/msgpack`: [ThingOne](#schema-thingone)"
    assert page[page.index("## Things") :].splitlines() == [
        "## Things",
        "",
        "### `PUT /v1/things/{thing}` { #putthing }",
        "",
        "Store a thing.",
        "",
        "| parameter | in | type | |",
        "|---|---|---|---|",
        "| `thing` (required) | path | string | A &lt;name&gt;, a&#124;b. |",
        "| `count` | query | integer (at least 1, at most 9) |  |",
        "",
        f"Request body: {body}",
        "",
        "| status | | body |",
        "|---|---|---|",
        "| 200 | Done. |  |",
        "| 404 | unknown-thing: none |  |",
        "",
        "## Schemas",
        "",
        "### Part { #schema-part }",
        "",
        "string",
        "",
        "### ThingOne { #schema-thingone }",
        "",
        "A thing.",
        "",
        "| field | type | |",
        "|---|---|---|",
        "| `kind` (required) | `a` or `b` | Which. |",
        "| `parts` | array of [Part](#schema-part) |  |",
        "| `texts` | object of string or null |  |",
        "| `next` | [Part](#schema-part) or null |  |",
    ]
