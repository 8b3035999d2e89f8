"""Serves the console's files, and answers requests for the root of the broker.

The files contain nothing secret, so they need no token. They are read once, when the first of them
is requested. The page loads nothing from other origins, and runs no code but that of its files: the
content security policy forbids both.
"""

from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path

import msgspec

from holdfast.http_api.routing.call import NoParams, OpenCall
from holdfast.http_api.routing.codecs import JSON
from holdfast.http_api.wire.aiohttp_parser import hdrs
from holdfast.http_api.wire.problems import Problem
from holdfast.http_api.wire.reply import Headers, Reply
from holdfast.http_api.wire.request import list_header

FOLDER = Path(__file__).parent / "static"
_HTML, _TEXT = "text/html; charset=utf-8", "text/plain; charset=utf-8"
_MEDIA_TYPES = {
    ".html": _HTML,
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_POLICY = "; ".join(
    [
        "default-src 'none'",
        *(f"{kind}-src 'self'" for kind in ("script", "style", "img", "connect")),
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    ]
)
_HEADERS = (
    ("Content-Security-Policy", _POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    (hdrs.CACHE_CONTROL, "no-cache"),
)
#: Relative, so that it is also right behind a proxy that serves the broker below a path.
_TO_CONSOLE = ((hdrs.LOCATION, "console/"), (hdrs.CACHE_CONTROL, "no-store"), ("Vary", "Accept"))


class PageFile(msgspec.Struct, frozen=True):
    """A file of the console as it is served."""

    media_type: str
    content: bytes
    etag: str


@cache
def page_files() -> Mapping[str, PageFile]:
    """Return the console's files by their path below `/console/`; "" is the page itself."""
    found = {}
    for path in sorted(FOLDER.rglob("*")):
        if path.suffix in _MEDIA_TYPES:
            content = path.read_bytes()
            etag = f'"{sha256(content).hexdigest()[:32]}"'
            name = path.relative_to(FOLDER).as_posix()
            found[name] = PageFile(_MEDIA_TYPES[path.suffix], content, etag)
    return {**found, "": found["index.html"]}


async def get_root(call: OpenCall[NoParams]) -> Reply:
    """Redirect browsers to the console, and describe the broker to other clients in three lines."""
    if call.http.console.enabled and "text/html" in list_header(call.headers, hdrs.ACCEPT):
        return Reply(303, _TEXT, (), _TO_CONSOLE)
    console = "  /console/ in a browser" if call.http.console.enabled else ""
    lines = (
        "Holdfast, a log-structured message broker with long polling.\n"
        f"The API: /v1/topics, /openapi.json, /readyz{console}\n"
        "The documentation: docs/http.md in the sources.\n"
    )
    return Reply(200, _TEXT, (lines.encode(),), (("Vary", "Accept"),))


async def get_console(call: OpenCall[NoParams]) -> Reply:
    """Redirect to the console's page, whose path ends with a slash."""
    _check_enabled(call)
    return Reply(303, _TEXT, (), _TO_CONSOLE)


async def get_settings(call: OpenCall[NoParams]) -> Reply:
    """Return the settings that the page needs."""
    _check_enabled(call)
    writable = b"true" if call.http.console.writable else b"false"
    return Reply(200, JSON, (b'{"writable":%b}' % writable,), _HEADERS)


async def get_file(call: OpenCall[NoParams]) -> Reply:
    """Return a file of the console, or 304 if the client has it already."""
    _check_enabled(call)
    name = call.request.url.raw_path.removeprefix("/console/")
    file = page_files().get(name)
    if file is None:
        raise _no_console(f"the console has no file {name[:200]!r}")
    headers: Headers = (*_HEADERS, (hdrs.ETAG, file.etag))
    if file.etag in list_header(call.headers, hdrs.IF_NONE_MATCH):
        return Reply(304, file.media_type, (), headers)
    return Reply(200, file.media_type, (file.content,), headers)


def _check_enabled(call: OpenCall[NoParams]) -> None:
    if not call.http.console.enabled:
        raise _no_console("the console is off; turn on console.enabled")


def _no_console(detail: str) -> Problem:
    return Problem("not-found", detail)
