"""Decodes the broker's replies, and turns error replies into exceptions. Pure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from holdfast.client.errors import BadReply, api_error
from holdfast.commitlog.format.batch_header import Buffer

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Reply:
    """A successful reply. Header names are lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes | memoryview
    url: str

    def json(self, type_: type[T]) -> T:
        """Return the JSON body as `type_`. Raises BadReply if the body does not match."""
        return self._decode("json", type_)

    def msgpack(self, type_: type[T]) -> T:
        """Return the msgpack body as `type_`. Raises BadReply if the body does not match."""
        return self._decode("msgpack", type_)

    def _decode(self, form: str, type_: type[T]) -> T:
        import msgspec  # imported here because Spark's executors do not have it

        try:
            decoded: T = getattr(msgspec, form).decode(self.body, type=type_)
        except msgspec.DecodeError as error:
            raise BadReply(self.url, str(error)) from error
        return decoded

    def header(self, name: str) -> str | None:
        """Return a header's value; None if it is missing."""
        return self.headers.get(name.lower())

    def header_int(self, name: str) -> int:
        """Return a header as a number. Raises BadReply if it is missing or not a number."""
        try:
            return int(self.headers[name.lower()])
        except (KeyError, ValueError) as error:
            raise BadReply(self.url, f"no number in the header {name}") from error


def raise_for_status(reply: Reply) -> Reply:
    """Return the reply if its status is below 300.

    Otherwise raise the ApiError that its JSON body describes. If the body is not a JSON object, it
    does not come from a broker. Then raise BadReply if the status is below 500, otherwise an
    ApiError whose title is the beginning of the body (probably a gateway's error page).
    """
    if reply.status < 300:
        return reply
    problem = parse_problem(reply.body)
    if problem is None:
        text = bytes(reply.body[:200]).decode(errors="replace")
        if reply.status < 500:
            raise BadReply(reply.url, f"status {reply.status}: {text!r}")
        # An error page of a gateway in front of the broker.
        problem = {"type": "about:blank", "title": text}
    raise api_error(reply.status, problem, parse_retry_after(reply.header("Retry-After")))


def parse_problem(body: Buffer) -> dict[str, Any] | None:
    """Return the JSON object in an error reply's body. Return None if the body is not one."""
    try:
        problem = json.loads(bytes(body))
    except ValueError:
        return None
    return problem if isinstance(problem, dict) else None


def parse_retry_after(value: str | None) -> float | None:
    """Return the seconds of a Retry-After header. Return None if it is missing, or is a date (which
    brokers never send)."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        return None
    return seconds if seconds >= 0 else None
