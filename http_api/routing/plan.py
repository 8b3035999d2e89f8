"""How a request is answered: the results of authorization, routing, negotiation and the query.

The plan of a request may be stored with its head (`wire/head_cache.py`), and used again for later
requests with the same head.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from holdfast.http_api.access.grants import Principal
from holdfast.http_api.access.tokens import Tokens
from holdfast.http_api.routing.router import Route


@dataclass(slots=True)
class RequestPlan:
    """The checked parts of a request. `params` and `media` are set by `complete`."""

    tokens: Tokens
    """The tokens by which the caller was authorized. With other tokens the plan does not apply."""
    principal: Principal
    route: Route
    values: Mapping[str, str]
    """The parameters in the path."""
    params: Any = None
    media: str = ""
    is_complete: bool = False
    _arguments: list[Any] = field(default_factory=list)
    """The values of `params`; empty until they are needed."""
    _offset_index: int = 0

    def complete(self, params: Any, media: str) -> None:
        """Set the parameters of the query, and the media type of the reply."""
        self.params, self.media, self.is_complete = params, media, True

    def params_at(self, offset: int) -> Any:
        """Return the parameters of the query with another value of the parameter `offset`."""
        if not self._arguments:
            names = [each.name for each in fields(self.params)]
            self._offset_index = names.index("offset")
            self._arguments = [getattr(self.params, name) for name in names]
        arguments = self._arguments.copy()
        arguments[self._offset_index] = offset
        return type(self.params)(*arguments)
