"""The OpenAPI 3.1 document, made from the route table and the types that the code uses."""

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.http_api.access.grants import Door
from holdfast.http_api.codecs import BATCH, MSGPACK, NDJSON
from holdfast.http_api.config import HttpConfig
from holdfast.http_api.params import declared
from holdfast.http_api.problems import KINDS, TYPE_PREFIX
from holdfast.http_api.reply import PROBLEM_JSON
from holdfast.http_api.route import Route

_Json = dict[str, Any]

_PATH_PARAMETERS: Mapping[str, _Json] = {
    "topic": {"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,127}$"},
    "group": {"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,127}$"},
    "queue": {"type": "integer", "minimum": 0},
    "message_id": {"type": "string", "pattern": "^[0-9A-Fa-f]{32}$"},
    "lease": {"type": "string", "pattern": "^[0-9a-f]{32}$"},
}

_REQUEST_HEADERS: Mapping[str, str] = {
    "Holdfast-Producer-Id": "A number, or a name that is hashed to one; with the two others it "
    "makes a publish that is not binary idempotent.",
    "Holdfast-Producer-Epoch": "Grows when another takes over as this producer.",
    "Holdfast-Producer-Sequence": "Counts the producer's requests to this topic.",
    "If-Match": "Store only if the offsets still have this ETag.",
    "If-None-Match": "*: store only if nothing is stored yet.",
}
_HEADER_PATTERNS: Mapping[str, _Json] = {
    "Holdfast-Producer-Id": {"pattern": "^[A-Za-z0-9_.-]{1,127}$"},
    "Holdfast-Producer-Epoch": {"pattern": "^[0-9]{1,10}$"},
    "Holdfast-Producer-Sequence": {"pattern": "^[0-9]{1,19}$"},
    "If-Match": {"pattern": '^([*]|"[0-9]{1,19}")$'},
    "If-None-Match": {"pattern": "^[*]$"},
}
_HEADERS_OF = {
    "publish": tuple(_REQUEST_HEADERS)[:3],
    "put_offsets": tuple(_REQUEST_HEADERS)[3:],
}

_OF_EVERY_ROUTE = (
    "malformed-request",
    "header-too-large",
    "invalid-parameter",
    "missing-parameter",
    "internal-error",
)
_NOT_OPEN = ("recovering", "draining")
#: Of every route that is not open: it touches the store, and its clients have their rates.
_OF_CLOSED_ROUTES = ("rate-limited", "storage-unavailable", "damaged-index")

_NEEDS_TOKEN = ("unauthenticated", "forbidden")
_TOKEN: _Json = {
    "type": "http",
    "scheme": "bearer",
    "description": "A token made by `holdfast token create`; asked for where authentication is on.",
}

#: What a body in a media type is, where that is not told by a type.
_PLAIN: Mapping[str, str] = {
    NDJSON: "A message a line, each as in JSON.",
    BATCH: "Binary batches as FORMAT.md draws them, one after another.",
    MSGPACK: "The same as in JSON, with bodies as bin.",
    "*/*": "The body of one message.",
}


def openapi_document(routes: Sequence[Route], config: HttpConfig, version: str) -> bytes:
    """Return the document as JSON."""
    types = list(_types(routes))
    schemas, components = msgspec.json.schema_components(
        types, ref_template="#/components/schemas/{name}"
    )
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
        "paths": paths,
        "components": {
            "schemas": {**components, "Problem": _problem_schema()},
            "securitySchemes": {"token": _TOKEN},
        },
    }
    return msgspec.json.encode(document)


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
    if route.access.door is not Door.OPEN:
        # Without authentication a request needs none: that is the empty one.
        operation["security"] = [{"token": []}, {}]
        operation["x-holdfast-verbs"] = list(route.access.verbs)
    if route.body:
        operation["requestBody"] = {"content": _content(route.body, schema_of)}
        if all(map(_demands_a_member, route.body.values())):
            operation["requestBody"]["required"] = True
    return operation


def _demands_a_member(type_: Any) -> bool:
    """Return whether an empty body, which counts as an empty object, is refused."""
    is_struct = isinstance(type_, type) and issubclass(type_, msgspec.Struct)
    return is_struct and any(each.required for each in msgspec.structs.fields(type_))


def _tag(path: str) -> str:
    """Return what a path is about: its last fixed part but one is too fine, its first enough."""
    parts = [part for part in path.split("/") if part not in ("", "v1")]
    if path.startswith("/v1/") and parts[0] != "info":
        return "messages" if "messages" in parts else parts[0]
    return "operations"


def _parameters(route: Route, config: HttpConfig) -> list[_Json]:
    in_path = [
        {"name": name, "in": "path", "required": True, "schema": _PATH_PARAMETERS[name]}
        for name in re.findall(r"{(\w+)}", route.path)
    ]
    in_query = []
    for name, (_, param) in declared(route.params).items():
        schema = param.schema(param, config)
        if param.default is not None:
            schema["default"] = getattr(config, param.default)
        in_query.append(
            {
                "name": name,
                "in": "query",
                "description": param.doc,
                "schema": schema,
                **({"required": True} if param.is_required else {}),
            }
        )
    in_head = [
        {
            "name": name,
            "in": "header",
            "description": _REQUEST_HEADERS[name],
            "schema": {"type": "string", **_HEADER_PATTERNS.get(name, {})},
        }
        for name in _HEADERS_OF.get(route.handler.__name__, ())
    ]
    return [*in_path, *in_query, *in_head]


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
    return {name: {"schema": {"type": type_}} for name, type_ in route.headers.items()}


def _problems(route: Route) -> _Json:
    slugs = [*_OF_EVERY_ROUTE, *route.problems]
    if not route.is_open or route.path == "/readyz":
        slugs += _NOT_OPEN
    if not route.is_open:
        slugs += _OF_CLOSED_ROUTES
    if route.access.door is not Door.OPEN:
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
    # How long a client over its rate has to wait, the limit says, not its kind.
    if any(slug == "rate-limited" or KINDS[slug].retry_after_s is not None for slug in slugs):
        response["headers"] = {
            "Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}
        }
    return response


def _problem_schema() -> _Json:
    return {
        "title": "Problem",
        "description": "An error (RFC 9457). Members of its own follow the standard ones.",
        "type": "object",
        "properties": {
            "type": {"enum": [TYPE_PREFIX + slug for slug in KINDS]},
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "detail": {"type": "string", "description": "What is wrong, and the mend."},
        },
        "required": ["type", "title", "status", "detail"],
        "additionalProperties": True,
    }
