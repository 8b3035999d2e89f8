"""The documentation site's generated pages, and links between its pages. Pure.

The site has the pages of `docs/` and some pages from elsewhere in the repository, whose links are
those of the repository. `with_site_links` changes them to links of the site.
"""

import posixpath
import re
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

#: Pages outside of docs/ -> their places in the site.
OUTSIDE = {
    "README.md": "readme.md",
    "ARCHITECTURE.md": "architecture.md",
    "FORMAT.md": "format.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CODE_OF_CONDUCT.md": "code-of-conduct.md",
    "examples/README.md": "examples.md",
}
#: Folders that pages link to -> the page of the site that describes the folder.
_FOLDERS = {
    "docs": "index.md",
    "docs/adr": "adr/README.md",
    "docs/tutorials": "tutorials/README.md",
    "examples": "examples.md",
}
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
_FENCE = re.compile(r" {0,3}```")

Json = Mapping[str, Any]


def repository_path(site_path: str) -> str:
    """Return the path in the repository of a page of the site."""
    for outside, inside in OUTSIDE.items():
        if inside == site_path:
            return outside
    return f"docs/{site_path}"


def with_site_links(markdown: str, source: str) -> str:
    """Return the page `source` (a path in the repository) with links that are right in the site.

    A link to a file that the site does not have is replaced by its text. Code blocks stay.
    """
    own = _site_path(source) or source
    is_code = False
    lines = []
    for line in markdown.split("\n"):
        if _FENCE.match(line):
            is_code = not is_code
        elif not is_code:
            line = _LINK.sub(lambda found: _linked(found, source, own), line)
        lines.append(line)
    return "\n".join(lines)


def _linked(link: re.Match[str], source: str, own: str) -> str:
    mark, text, address = link.groups()
    place, hash_sign, anchor = address.partition("#")
    if not place or re.match(r"[a-z]+:", place):
        return link[0]
    target = posixpath.normpath(posixpath.join(posixpath.dirname(source), place))
    found = _site_path(target)
    if found is None:
        return text
    relative = posixpath.relpath(found, posixpath.dirname(own) or ".")
    # The text may have an image with a link of its own.
    inner = _LINK.sub(lambda nested: _linked(nested, source, own), text)
    return f"{mark}[{inner}]({relative}{hash_sign}{anchor})"


def _site_path(path: str) -> str | None:
    """Return the place in the site of a file or folder of the repository; None if it has none."""
    if path in OUTSIDE:
        return OUTSIDE[path]
    if path in _FOLDERS:
        return _FOLDERS[path]
    if path.startswith("docs/") and posixpath.splitext(path)[1]:
        return path.removeprefix("docs/")
    return None


def decisions(titles: Mapping[str, str]) -> str:
    """Return the page that lists the decisions: file name -> title, in the order of the names."""
    rows = [f"- [{titles[name]}]({name})" for name in sorted(titles)]
    return "\n".join(["# Decisions", "", "Decisions that are hard to undo.", "", *rows, ""])


def http_reference(document: Json) -> str:
    """Return the reference of an OpenAPI document: each operation by tag, then the schemas."""
    lines = [
        "# HTTP reference",
        "",
        f"Made from the [OpenAPI document](openapi.json) of version {document['info']['version']}, "
        "which a broker serves at `/openapi.json`. [HTTP by example](../http.md) explains it.",
    ]
    by_tag: dict[str, list[str]] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            section = by_tag.setdefault(operation["tags"][0], [])
            section += _operation(method.upper(), path, operation)
    for tag, section in by_tag.items():
        lines += ["", f"## {tag.capitalize()}", *section]
    lines += ["", "## Schemas"]
    for name, schema in sorted(document["components"]["schemas"].items()):
        lines += _schema(name, schema)
    return "\n".join(lines) + "\n"


def _operation(method: str, path: str, operation: Json) -> Iterator[str]:
    name = operation["operationId"]
    yield from ("", f"### `{method} {path}` {{ #{_anchor(name)} }}", "", operation["summary"])
    if "description" in operation:
        yield from ("", _text(operation["description"]))
    if operation.get("parameters"):
        yield from ("", "| parameter | in | type | |", "|---|---|---|---|")
    for each in operation.get("parameters", ()):
        required = " (required)" if each.get("required") else ""
        about = _cell(each.get("description", ""))
        yield f"| `{each['name']}`{required} | {each['in']} | {_type(each['schema'])} | {about} |"
    if "requestBody" in operation:
        yield from ("", f"Request body: {_content(operation['requestBody']['content'])}")
    yield from ("", "| status | | body |", "|---|---|---|")
    for status, reply in operation["responses"].items():
        yield f"| {status} | {_cell(reply['description'])} | {_content(reply.get('content', {}))} |"


def _content(content: Json) -> str:
    """Return the media types of a body, each with its schema; types of one schema together."""
    types: dict[str, list[str]] = {}
    for media_type, body in content.items():
        types.setdefault(_type(body.get("schema", {})), []).append(f"`{media_type}`")
    return "; ".join(f"{', '.join(names)}: {schema}" for schema, names in types.items())


def _schema(name: str, schema: Json) -> Iterator[str]:
    yield from ("", f"### {name} {{ #{_anchor(f'schema-{name}')} }}")
    if "description" in schema:
        yield from ("", _text(schema["description"]))
    if "properties" not in schema:
        yield from ("", _type(schema))
        return
    yield from ("", "| field | type | |", "|---|---|---|")
    for field, each in schema["properties"].items():
        required = " (required)" if field in schema.get("required", ()) else ""
        yield f"| `{field}`{required} | {_type(each)} | {_cell(each.get('description', ''))} |"


def _type(schema: Json) -> str:
    """Return the type of a schema in words, with links to the schemas that it names."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{_anchor(f'schema-{name}')})"
    for choice in ("anyOf", "oneOf"):
        if choice in schema:
            return " or ".join(dict.fromkeys(map(_type, schema[choice])))
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    kinds = schema.get("type", "any")
    names = [kinds] if isinstance(kinds, str) else list(kinds)
    return " or ".join(_kind(name, schema) for name in names)


def _kind(name: str, schema: Json) -> str:
    if name == "array" and "items" in schema:
        return f"array of {_type(schema['items'])}"
    if name == "object" and isinstance(schema.get("additionalProperties"), Mapping):
        return f"object of {_type(schema['additionalProperties'])}"
    limits = [
        f"{word} {schema[key]}"
        for key, word in (("minimum", "at least"), ("maximum", "at most"))
        if key in schema and name == "integer"
    ]
    return f"{name} ({', '.join(limits)})" if limits else name


def _anchor(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _text(text: str) -> str:
    return escape(text, quote=False)


def _cell(text: str) -> str:
    return " ".join(_text(text).split()).replace("|", "&#124;")
