"""How a request is answered: the results of authorization, routing, negotiation and the query.

The plan of a request may be stored with its head (`wire/head_cache.py`), and used again for later
requests with the same head.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from holdfast.http_api.access.grants import Principal
from holdfast.http_api.access.tokens import Tokens
from holdfast.http_api.routing.router import Route


class RequestPlan(msgspec.Struct):
    """The checked parts of a request. `params` and `media` are set by `complete`."""

    tokens: Tokens
    """The tokens by which the caller was authorized. With other tokens the plan does not apply."""
    principal: Principal
    route: Route
    values: Mapping[str, str]
    """The parameters in the path."""
    client_name: str
    """The client's token id, or its address if it has no token, for limits per client."""
    params: Any = None
    media: str = ""
    """The media type of the reply; "" until `complete` is called."""

    @property
    def is_complete(self) -> bool:
        return self.media != ""

    def complete(self, params: Any, media: str) -> None:
        """Set the parameters of the query, and the media type of the reply."""
        self.params, self.media = params, media

    def params_at(self, offset: int | None) -> Any:
        """Return the parameters of the query, with another value of the parameter `offset` if one
        is given."""
        return self.params if offset is None else replace(self.params, offset=offset)
