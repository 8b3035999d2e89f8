"""The definition of a route: its path, its handler, and its entry in the OpenAPI document."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.http_api.access.grants import NO_ACCESS, RequiredPermission
from holdfast.http_api.routing.call import NoParams
from holdfast.http_api.routing.codecs import STRUCTURED
from holdfast.http_api.wire.reply import Reply

#: Takes a Call. The handler of an open route takes an OpenCall: it also gets requests before the
#: storage is open.
Handler = Callable[[Any], Awaitable[Reply]]


@dataclass(frozen=True, slots=True)
class Route:
    """One method on one path. The handler's docstring describes it in the OpenAPI document."""

    method: str
    path: str
    handler: Handler
    params: type = NoParams
    """The dataclass of the query parameters."""
    body: Mapping[str, Any] = field(default_factory=dict)
    """Media type -> type of the request's body, or None if the body is bytes."""
    replies: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    """Status -> media type -> type of the reply's body, or None if the body is bytes."""
    offers: Sequence[str] = STRUCTURED
    """The media types of the reply, preferred first, from which a client may choose.

    If it is empty, the client has no choice.
    """
    problems: Sequence[str] = ()
    """The problems that this route may return, in addition to those of every route."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """The name of each header of successful replies -> its JSON type."""
    is_open: bool = False
    """Whether the route answers in every phase of the broker, also during recovery."""
    access: RequiredPermission = NO_ACCESS
    """The permission that the caller needs. By default, the route refuses every caller."""
    act: str = ""
    """The name of the administrative act in the audit log; "" if the route is not audited."""


def structured(type_: Any) -> dict[str, Any]:
    """Return media type -> `type_` for a body that may be JSON or msgpack."""
    return dict.fromkeys(STRUCTURED, type_)
