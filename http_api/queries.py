"""What the query strings of requests say. They do not change what they are read into, and come
again: as a whole, or, of a reader that goes on, all but for an offset. So they are remembered."""

from functools import lru_cache, partial
from typing import Any

from holdfast.http_api.config import HttpConfig
from holdfast.http_api.params import query_pairs, read_params, read_value

#: So many are remembered, and so many single values, if they are no longer than this.
_REMEMBERED = 1024
_SHORT_CHARACTERS = 256


class Queries:
    """Reads query strings. Belongs to the event loop."""

    def __init__(self, config: HttpConfig) -> None:
        self._config = config
        self._remembered = lru_cache(_REMEMBERED)(self._read)
        self._value_of = lru_cache(_REMEMBERED)(partial(read_value, config))

    def read(self, params: type, raw_query: str) -> Any:
        """Return a query's parameters, which are others' too: nobody changes them. Raises as
        `query_pairs` and `read_params` do."""
        if len(raw_query) <= _SHORT_CHARACTERS:
            return self._remembered(params, raw_query)
        return read_params(params, query_pairs(raw_query), self._config)

    def _read(self, params: type, raw_query: str) -> Any:
        return read_params(params, query_pairs(raw_query), self._config, self._value_of)
