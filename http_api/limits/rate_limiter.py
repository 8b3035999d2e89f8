"""Applies rate limits: to the requests of each client, and to what each client publishes."""

from time import monotonic

from holdfast.http_api.access.authorization import UNKNOWN
from holdfast.http_api.access.grants import ANONYMOUS, Principal
from holdfast.http_api.config import HttpConfig
from holdfast.http_api.limits.token_buckets import (
    PublishRate,
    RateLimit,
    Rates,
    Refusal,
    retry_after_s,
)
from holdfast.http_api.wire.problems import Problem
from holdfast.http_api.wire.reply import Reply
from holdfast.http_api.wire.request import Request


class RateLimiter:
    """The rate limits of one server's clients. Belongs to the event loop.

    All requests with the same token count as one client. Requests without a token are counted by
    address.
    """

    def __init__(self, config: HttpConfig) -> None:
        self._config = config
        self._limit = RateLimit(
            config.max_requests_per_s_per_client, config.max_bytes_per_s_per_client
        )

    @property
    def waits(self) -> RateLimit:
        """The clients, with the time that each must wait."""
        return self._limit

    def admit(self, request: Request, principal: Principal) -> Principal:
        """Charge the client for a request, before its body is read, and return `principal`.

        Raises Problem (rate-limited) if the client exceeds a limit.
        """
        refusal = self._limit.ask(client_name(request, principal), monotonic())
        if refusal is None:
            return principal
        name, seconds = refusal
        limit = getattr(self._config, name)
        reason = f"this client is over {name} ({limit})"
        raise _rate_limited(reason, seconds, limit, name, ", or send more in a request")

    def charge(self, request: Request, principal: Principal, reply: Reply) -> None:
        """Charge the client for the received bytes of the request's body, and for the reply."""
        size = request.content.total_bytes + reply.size
        self._limit.charge(client_name(request, principal), size, monotonic())

    def streamed(self, request: Request, principal: Principal, size: int) -> float:
        """Charge the client for `size` sent bytes of a stream, and for one request.

        Return how many seconds the stream must wait, or 0 if the client is within its limits.
        """
        name, now = client_name(request, principal), monotonic()
        if size:
            self._limit.charge(name, size, now)
        refusal = self._limit.ask(name, now)
        return 0.0 if refusal is None else refusal[1]


class PublishLimiter:
    """The limits on how much each client publishes. Belongs to the event loop.

    The limit of a client's token takes precedence over the configured limit.
    """

    def __init__(self, config: HttpConfig) -> None:
        self._default = Rates(
            config.max_publish_messages_per_s_per_client, config.max_publish_bytes_per_s_per_client
        )
        self._rate = PublishRate()

    @property
    def waits(self) -> PublishRate:
        """The clients, with the time that each must wait."""
        return self._rate

    def rates_of(self, principal: Principal) -> Rates:
        """Return how many messages and bytes a principal may publish per second."""
        own, default = principal.publish_rates, self._default
        if own is None:
            return default
        messages, size = own
        return Rates(
            default.items if messages is None else messages,
            default.bytes if size is None else size,
        )

    def admit(self, client: str, principal: Principal) -> None:
        """Raise Problem (rate-limited) if a client must not publish now.

        Callers must call this before they read the request's body.
        """
        rates = self.rates_of(principal)
        refusal = self._ask(client, rates)
        if refusal is None:
            return
        name, seconds = refusal
        limit, unit = (
            (rates.items, "messages")
            if name == "publish_messages_per_s"
            else (rates.bytes, "bytes")
        )
        reason = f"this client publishes more than its {limit} {unit} a second"
        raise _rate_limited(reason, seconds, limit, name)

    def wait_s(self, client: str, principal: Principal) -> float:
        """Return how many seconds a client must wait before it may publish; 0 if it may now."""
        rates = self.rates_of(principal)
        refusal = self._ask(client, rates)
        return 0.0 if refusal is None else refusal[1]

    def published(self, client: str, principal: Principal, messages: int, size: int) -> None:
        rates = self.rates_of(principal)
        if any(rates):
            self._rate.charge(client, rates, messages, size, monotonic())

    def _ask(self, client: str, rates: Rates) -> Refusal | None:
        return self._rate.ask(client, rates, monotonic()) if any(rates) else None


def client_name(request: Request, principal: Principal) -> str:
    """Return the name of a request's client: its token's id, or its address without a token."""
    return limited_name(request.peer.client, principal)


def limited_name(address: str, principal: Principal) -> str:
    """Return the name under which the limits count a client at `address`: its token's id, or its
    address without a token."""
    if principal is ANONYMOUS or principal is UNKNOWN:
        return f"address {address}"
    return f"token {principal.name}"


def _rate_limited(reason: str, seconds: float, limit: int, name: str, hint: str = "") -> Problem:
    after_s = retry_after_s(seconds)
    detail = f"{reason}; wait {after_s} s{hint}"
    problem = Problem("rate-limited", detail, limit=limit, limit_name=name)
    problem.headers.append(("Retry-After", str(after_s)))
    return problem
