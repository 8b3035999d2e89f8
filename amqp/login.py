"""The SASL exchange of one connection. It determines the principal of the client."""

import asyncio
from collections.abc import Callable

from holdfast.amqp.connections import AmqpConnections
from holdfast.amqp.engine.connection import Connection
from holdfast.amqp.engine.events import SaslResponded, SaslStarted
from holdfast.amqp.sasl import AUTH, EXTERNAL, OK, WITH_TOKEN, offered_mechanisms, token_in
from holdfast.http_api.access.authorization import UNKNOWN, Denied
from holdfast.http_api.access.grants import ANONYMOUS, Principal


class Login:
    """Authenticates the client of one connection.

    `Login` calls `admitted` with the principal. It calls `refused` after it wrote the outcome of a
    refusal, and `audit` with the name of a denied principal and the reason. `certificate_names` are
    the names in the client's verified certificate. `external` is the principal if the client
    authenticated before AMQP began; otherwise it is None.
    """

    def __init__(
        self,
        connections: AmqpConnections,
        engine: Connection,
        client: str,
        certificate_names: list[str],
        external: Principal | None,
        *,
        admitted: Callable[[Principal], None],
        refused: Callable[[], None],
        audit: Callable[[str, str], None],
    ) -> None:
        self._shared = connections
        self._engine = engine
        self._client = client
        self._certificate_names = certificate_names
        self._external = external
        self._admitted = admitted
        self._refused = refused
        self._audit = audit
        self._mechanisms = offered_mechanisms(
            is_required=connections.access.is_required,
            offers_external=bool(certificate_names) or external is not None,
        )
        engine.offer_mechanisms(self._mechanisms)
        self._challenged: str | None = None
        """The mechanism whose response is awaited."""
        self._delay: asyncio.TimerHandle | None = None

    def stop(self) -> None:
        """Cancel a delayed refusal, because the connection has ended."""
        if self._delay is not None:
            self._delay.cancel()

    def started(self, event: SaslStarted) -> None:
        """The client chose a mechanism."""
        mechanism, access = event.mechanism, self._shared.access
        self._challenged = None
        if mechanism not in self._mechanisms:
            self._fail(f"the mechanism {mechanism[:40]!r} was not offered")
        elif not access.is_required:
            self._admit(ANONYMOUS, None)
        elif mechanism == EXTERNAL and self._external is not None:
            self._admit(self._external, None)
        elif mechanism == EXTERNAL:
            self._admit(*access.identify_certificate(self._certificate_names))
        elif event.response is None:
            self._challenged = mechanism
            self._engine.sasl_challenge(b"")
        else:
            self._check_token(mechanism, event.response)

    def responded(self, event: SaslResponded) -> None:
        """The client answered the challenge."""
        mechanism, self._challenged = self._challenged, None
        if mechanism in WITH_TOKEN:
            self._check_token(mechanism, event.response)
        else:
            self._fail("a response without a challenge")

    def _check_token(self, mechanism: str, response: bytes) -> None:
        token = token_in(mechanism, response)
        if token is None:
            self._fail(f"the response to {mechanism} has no token")
        else:
            self._admit(*self._shared.access.identify_token(token))

    def _admit(self, principal: Principal, denied: Denied | None) -> None:
        if denied is not None:
            self._fail(denied.detail, denied.principal)
            return
        self._admitted(principal)
        self._engine.sasl_outcome(OK)

    def _fail(self, reason: str, principal: str = UNKNOWN.name) -> None:
        """Refuse the client. If the client has failed often, wait before the refusal."""
        shared, loop = self._shared, asyncio.get_running_loop()
        shared.counters.sasl_failures += 1
        self._audit(principal, reason)
        delay_s = shared.sasl_failures.delay_s(self._client, loop.time())
        if delay_s:
            self._delay = loop.call_later(delay_s, self._refuse)
        else:
            self._refuse()

    def _refuse(self) -> None:
        self._engine.sasl_outcome(AUTH)
        self._refused()
