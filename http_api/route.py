"""What an endpoint is: its place, its code, and what the OpenAPI document says of it."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.http_api.access.grants import NOBODY, Need
from holdfast.http_api.call import Call, NoParams
from holdfast.http_api.codecs import STRUCTURED
from holdfast.http_api.reply import Reply

Handler = Callable[[Call[Any]], Awaitable[Reply]]


@dataclass(frozen=True, slots=True)
class Route:
    """One method on one path. The handler's docstring is its description."""

    method: str
    path: str
    handler: Handler
    params: type = NoParams
    """Dataclass of the query's parameters."""
    body: Mapping[str, Any] = field(default_factory=dict)
    """Media type -> type of the request's body, None for bytes."""
    replies: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    """Status -> media type -> type of the reply's body, None for bytes."""
    offers: Sequence[str] = STRUCTURED
    """Media types that the reply may have, the preferred one first; none: it has its own."""
    problems: Sequence[str] = ()
    """Problems that it may answer with, beside those of every route."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers of its successful replies -> their JSON types."""
    is_open: bool = False
    """Answers in every phase of the broker, also while the store is not to be touched."""
    access: Need = NOBODY
    """What it asks of whoever calls it; a route that does not say is shut for everybody."""
    act: str = ""
    """What the audit log calls it, whoever calls it; empty: no administrative act."""


def structured(type_: Any) -> dict[str, Any]:
    """Return the media types of a body that comes in JSON or msgpack."""
    return dict.fromkeys(STRUCTURED, type_)
