"""The OpenAPI 3.1 document, made from the route table and the types that the code uses."""

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.http_api.access.grants import Exposure
from holdfast.http_api.config import HttpConfig
from holdfast.http_api.routing.codecs import BATCH, EVENTS, MSGPACK, NDJSON
from holdfast.http_api.routing.openapi_fields import (
    INT32,
    PROBLEM_MEMBERS,
    describe_field,
    plain_schema,
)
from holdfast.http_api.routing.params import PAIRS_PATTERN, declared
from holdfast.http_api.routing.router import Route
from holdfast.http_api.wire.problems import KINDS, TYPE_PREFIX
from holdfast.http_api.wire.reply import PROBLEM_JSON

_Json = dict[str, Any]

_NAME_PATTERN = "^[A-Za-z0-9_.-]{1,127}$"
#: The name of each parameter in a path -> its description and schema.
_PATH_PARAMETERS: Mapping[str, tuple[str, _Json]] = {
    "topic": ("The topic's name.", {"type": "string", "pattern": _NAME_PATTERN}),
    "group": ("The group's name.", {"type": "string", "pattern": _NAME_PATTERN}),
    "queue": ("The queue's number.", {"type": "integer", "format": "int32", "minimum": 0}),
    "message_id": (
        "The message's id, as replies to publishing and reading contain it.",
        {"type": "string", "pattern": "^[0-9A-Fa-f]{32}$"},
    ),
    "lease": ("The lease's id, from the plan.", {"type": "string", "pattern": "^[0-9a-f]{32}$"}),
}

#: The name of each request header -> its description and pattern.
_REQUEST_HEADERS: Mapping[str, tuple[str, str]] = {
    "Holdfast-Producer-Id": (
        "A number, or a name that is hashed to a number. Together, the three producer headers make "
        "a publish idempotent. Not for binary batches.",
        _NAME_PATTERN,
    ),
    "Holdfast-Producer-Epoch": (
        "Increases each time another process takes over this producer.",
        "^[0-9]{1,10}$",
    ),
    "Holdfast-Producer-Sequence": (
        "The number of the request, counted for this producer and topic.",
        "^[0-9]{1,19}$",
    ),
    "If-Match": (
        "Store only if the stored offsets still have this ETag.",
        '^([*]|"[0-9]{1,19}")$',
    ),
    "If-None-Match": ("*: store only if no offsets are stored yet.", "^[*]$"),
    "Last-Event-ID": (
        "The id of the last received event of a stream (text/event-stream). The stream continues "
        "after it. Has no effect on other requests.",
        PAIRS_PATTERN,
    ),
}
_HEADERS_OF = {
    "publish": tuple(_REQUEST_HEADERS)[:3],
    "put_offsets": tuple(_REQUEST_HEADERS)[3:5],
    "pull": ("Last-Event-ID",),
    "poll": ("Last-Event-ID",),
}

_OF_EVERY_ROUTE = (
    "malformed-request",
    "header-too-large",
    "invalid-parameter",
    "missing-parameter",
    "misdirected-request",
    "internal-error",
)
_NOT_OPEN = ("recovering", "draining")
#: Problems of every route with `is_open=False`: it uses the store, and rate limits apply to it.
_OF_CLOSED_ROUTES = ("rate-limited", "storage-unavailable", "damaged-index")

_NEEDS_TOKEN = ("unauthenticated", "forbidden")
_TOKEN: _Json = {
    "type": "http",
    "scheme": "bearer",
    "description": "A token made by `holdfast token create`. Required if authentication is on.",
}

#: Descriptions of bodies, for media types whose bodies have no Python type.
_PLAIN: Mapping[str, str] = {
    NDJSON: "One message per line, each as in JSON.",
    BATCH: "Binary batches in the format of FORMAT.md, one after another.",
    EVENTS: "One message per event, until the client or the broker ends the stream.",
    MSGPACK: "The same fields as in JSON, but bodies have the type bin.",
    "*/*": "The body of one message.",
}


def openapi_document(routes: Sequence[Route], config: HttpConfig, version: str) -> bytes:
    types = list(_types(routes))
    schemas, components = _schemas(types)
    schema_of = {id(type_): schema for type_, schema in zip(types, schemas, strict=True)}
    paths: _Json = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(
            route, config, schema_of
        )
    document = {
        "openapi": "3.1.0",
        "info": {
            "title": "Holdfast",
            "summary": "A log-structured message broker with long polling.",
            "version": version,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/", "description": "The broker that served this document."}],
        "paths": paths,
        "components": {
            "schemas": {**components, "Problem": _problem_schema()},
            "securitySchemes": {"token": _TOKEN},
        },
    }
    return msgspec.json.encode(document)


def _schemas(types: Sequence[Any]) -> tuple[list[_Json], dict[str, _Json]]:
    """Return the schemas of `types`, and the named schemas to which those schemas refer."""
    schemas, components = msgspec.json.schema_components(
        types, ref_template="#/components/schemas/{name}"
    )
    named = {}
    for long_name, schema in components.items():
        name = _ARGUMENTS.sub("", long_name)
        plain = plain_schema(schema) | {"title": name}
        if "properties" in schema:
            plain["properties"] = {
                field: _renamed(describe_field(name, field, each))
                for field, each in schema["properties"].items()
            }
        named[name] = plain
    assert len(named) == len(components)
    return [_renamed(plain_schema(each)) for each in schemas], named


#: The part of a generic type's name that consists of its type arguments.
_ARGUMENTS = re.compile(r"_\w+_$")


def _renamed(schema: Any) -> Any:
    """Return a schema whose references use the names of this document."""
    if isinstance(schema, dict):
        return {
            name: _ARGUMENTS.sub("", each) if name == "$ref" else _renamed(each)
            for name, each in schema.items()
        }
    return [_renamed(each) for each in schema] if isinstance(schema, list) else schema


def _types(routes: Iterable[Route]) -> Iterable[Any]:
    seen = {}
    for route in routes:
        for contents in (route.body, *route.replies.values()):
            for type_ in contents.values():
                if type_ is not None:
                    seen[id(type_)] = type_
    return seen.values()


def _operation(route: Route, config: HttpConfig, schema_of: Mapping[int, _Json]) -> _Json:
    summary, _, description = (inspect.getdoc(route.handler) or "").partition("\n")
    operation: _Json = {
        "operationId": route.handler.__name__,
        "summary": summary,
        "tags": [_tag(route.path)],
        "parameters": _parameters(route, config),
        "responses": {**_replies(route, schema_of), **_problems(route)},
    }
    if description.strip():
        operation["description"] = description.strip()
    if route.access.exposure is not Exposure.PUBLIC:
        # The {} is an alternative without a token, for a broker without authentication.
        operation["security"] = [{"token": []}, {}]
        operation["x-holdfast-verbs"] = list(route.access.verbs)
    else:
        operation["security"] = []
    if route.body:
        operation["requestBody"] = {"content": _content(route.body, schema_of)}
        if all(map(_demands_a_member, route.body.values())):
            operation["requestBody"]["required"] = True
    return operation


def _demands_a_member(type_: Any) -> bool:
    """Return whether a body of this type has required fields, so that it must not be empty."""
    is_struct = isinstance(type_, type) and issubclass(type_, msgspec.Struct)
    return is_struct and any(each.required for each in msgspec.structs.fields(type_))


def _tag(path: str) -> str:
    """Return the tag under which the document lists a path."""
    parts = [part for part in path.split("/") if part not in ("", "v1")]
    if path.startswith("/v1/") and parts[0] != "info":
        return "messages" if "messages" in parts else parts[0]
    return "operations"


def _parameters(route: Route, config: HttpConfig) -> list[_Json]:
    in_path = [
        _parameter(name, "path", *_PATH_PARAMETERS[name], is_required=True)
        for name in re.findall(r"{(\w+)}", route.path)
    ]
    in_query = []
    for name, (_, param) in declared(route.params).items():
        schema = plain_schema(param.schema(param, config), is_short=name in INT32)
        if param.default is not None:
            schema["default"] = getattr(config, param.default)
        in_query.append(_parameter(name, "query", param.doc, schema, is_required=param.is_required))
    in_head = []
    for name in _HEADERS_OF.get(route.handler.__name__, ()):
        doc, pattern = _REQUEST_HEADERS[name]
        in_head.append(_parameter(name, "header", doc, {"type": "string", "pattern": pattern}))
    return [*in_path, *in_query, *in_head]


def _parameter(
    name: str, where: str, doc: str, schema: _Json, *, is_required: bool = False
) -> _Json:
    required = {"required": True} if is_required else {}
    return {"name": name, "in": where, "description": doc, "schema": schema, **required}


def _content(types: Mapping[str, Any], schema_of: Mapping[int, _Json]) -> _Json:
    return {media: {"schema": _schema(media, type_, schema_of)} for media, type_ in types.items()}


def _schema(media: str, type_: Any, schema_of: Mapping[int, _Json]) -> _Json:
    schema: _Json = {} if type_ is None else dict(schema_of[id(type_)])
    if media in _PLAIN:
        schema["description"] = _PLAIN[media]
    return schema


def _replies(route: Route, schema_of: Mapping[int, _Json]) -> _Json:
    return {
        str(status): {
            "description": _SUCCESS[status],
            "content": _content(types, schema_of),
            **({"headers": _headers(route)} if route.headers else {}),
        }
        for status, types in route.replies.items()
    }


_SUCCESS = {200: "Done.", 201: "Created."}


def _headers(route: Route) -> _Json:
    return {
        name: {"description": _HEADER_DOCS[name], "schema": plain_schema({"type": type_})}
        for name, type_ in route.headers.items()
    }


_HEADER_DOCS: Mapping[str, str] = {
    "Holdfast-Next-Offset": "The offset to continue from. For several queues: queue:offset pairs.",
    "Holdfast-Min-Offset": "The first offset that is kept. For several queues: queue:offset pairs.",
    "Holdfast-Max-Offset": "The offset of the next new message. For several queues: queue:offset "
    "pairs.",
    "Holdfast-Skipped": "The skipped ranges, as queue:start:end. The end is not included.",
    "Holdfast-Topic-Id": "The topic's number.",
    "Holdfast-Available": "An upper bound of how many more messages could be delivered.",
    "Holdfast-Active": "Whether this member may be served now.",
    "ETag": "The version of the stored offsets, for If-Match.",
}


def _problems(route: Route) -> _Json:
    slugs = [*_OF_EVERY_ROUTE, *route.problems]
    if not route.is_open or route.path == "/readyz":
        slugs += _NOT_OPEN
    if not route.is_open:
        slugs += _OF_CLOSED_ROUTES
    if route.access.exposure is not Exposure.PUBLIC:
        slugs += _NEEDS_TOKEN
    if route.offers:
        slugs.append("not-acceptable")
    if declared(route.params):
        slugs.append("limit-exceeded")
    by_status: dict[int, list[str]] = {}
    for slug in dict.fromkeys(slugs):
        by_status.setdefault(KINDS[slug].status, []).append(slug)
    return {str(status): _problem_response(slugs) for status, slugs in sorted(by_status.items())}


def _problem_response(slugs: Sequence[str]) -> _Json:
    response: _Json = {
        "description": "; ".join(f"{slug}: {KINDS[slug].title}" for slug in slugs),
        "content": {PROBLEM_JSON: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
    # The Retry-After of a rate limit depends on the client, so its kind has none.
    if any(slug == "rate-limited" or KINDS[slug].retry_after_s is not None for slug in slugs):
        response["headers"] = {
            "Retry-After": {
                "description": "Seconds to wait before the next attempt.",
                "schema": {"type": "integer", "format": "int32"},
            }
        }
    return response


def _problem_schema() -> _Json:
    return {
        "title": "Problem",
        "description": "An error (RFC 9457). A type may have additional members.",
        "type": "object",
        "properties": {
            "type": describe_field(
                "Problem", "type", {"enum": [TYPE_PREFIX + slug for slug in KINDS]}
            ),
            "title": describe_field("Problem", "title", {"type": "string"}),
            "status": describe_field("Problem", "status", {"type": "integer"}),
            "detail": {
                "type": "string",
                "description": "What is wrong, and how to fix it.",
                "examples": ["the offset 3 of queue 0 is no longer kept; continue from offset=40"],
            },
            **{
                name: {**schema, "description": text}
                for name, (schema, text) in PROBLEM_MEMBERS.items()
            },
        },
        "required": ["type", "title", "status", "detail"],
        "additionalProperties": True,
    }
