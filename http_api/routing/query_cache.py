"""Parses query strings and caches the results.

The same query string always gives the same parameters, and clients repeat their queries. The
queries of a reader that advances differ only in the offset, so single values are cached, too.
"""

from functools import lru_cache, partial
from typing import Any

from holdfast.http_api.config import HttpConfig
from holdfast.http_api.routing.params import query_pairs, read_params, read_value

#: At most this many queries, and at most this many single values, are cached.
_CACHE_SIZE = 1024
#: Queries with more characters are not cached.
_SHORT_CHARACTERS = 256


class Queries:
    """Parses query strings. Belongs to the event loop."""

    def __init__(self, config: HttpConfig) -> None:
        self._config = config
        self._cached = lru_cache(_CACHE_SIZE)(self._read)
        self._value_of = lru_cache(_CACHE_SIZE)(partial(read_value, config))

    def read(self, params: type, raw_query: str) -> Any:
        """Return a query's parameters. Several requests share the object: treat it as immutable.

        Raises the problems of `query_pairs` and `read_params`.
        """
        if len(raw_query) <= _SHORT_CHARACTERS:
            return self._cached(params, raw_query)
        return read_params(params, query_pairs(raw_query), self._config)

    def _read(self, params: type, raw_query: str) -> Any:
        return read_params(params, query_pairs(raw_query), self._config, self._value_of)
