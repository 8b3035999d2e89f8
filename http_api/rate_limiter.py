"""Rate limits on requests: whose a request is, and what it and its reply weigh."""

from time import monotonic

from holdfast.http_api.access.grants import ANYONE, Principal
from holdfast.http_api.config import HttpConfig
from holdfast.http_api.problems import Problem
from holdfast.http_api.rate_limit import RateLimit, retry_after_s
from holdfast.http_api.reply import Reply
from holdfast.http_api.request import Request


class RateLimiter:
    """Limits of one server's clients. Belongs to the event loop.

    Whoever is known by a token is one client from wherever they ask; the others are known by
    their addresses.
    """

    def __init__(self, config: HttpConfig) -> None:
        self._config = config
        self._limit = RateLimit(
            config.max_requests_per_s_per_client, config.max_bytes_per_s_per_client
        )

    def admit(self, request: Request, principal: Principal) -> None:
        """Take a request, before its body is read. Raises Problem: rate-limited."""
        refusal = self._limit.ask(_client(request, principal), monotonic())
        if refusal is None:
            return
        name, seconds = refusal
        limit = getattr(self._config, name)
        after_s = retry_after_s(seconds)
        problem = Problem(
            "rate-limited",
            f"this client is over {name} ({limit}); wait {after_s} s, or send more in a request",
            limit=limit,
            limit_name=name,
        )
        problem.headers.append(("Retry-After", str(after_s)))
        raise problem

    def answered(self, request: Request, principal: Principal, reply: Reply) -> None:
        """Take the bytes of a request's body, as far as it has come, and of its reply's."""
        size = request.content.total_bytes + reply.size
        self._limit.moved(_client(request, principal), size, monotonic())


def _client(request: Request, principal: Principal) -> str:
    if principal is ANYONE:
        return f"address {request.connection.client}"
    return f"token {principal.name}"
