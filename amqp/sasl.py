"""SASL mechanisms: which mechanisms are offered, and the credentials in responses. Pure.

| mechanism   | response                                                      | credential    |
|-------------|---------------------------------------------------------------|---------------|
| ANONYMOUS   | any                                                           | none          |
| PLAIN       | authorization NUL user NUL password (RFC 4616)                | the password  |
| XOAUTH2     | user=USER ^A auth=Bearer TOKEN ^A ^A                          | TOKEN         |
| OAUTHBEARER | n,a=USER, ^A host=.. ^A auth=Bearer TOKEN ^A ^A (RFC 7628)    | TOKEN         |
| EXTERNAL    | any                                                           | see `Login`   |

The broker ignores the name of the user. The password of PLAIN is a token.
"""

from collections import OrderedDict

import msgspec

ANONYMOUS = "ANONYMOUS"
PLAIN = "PLAIN"
XOAUTH2 = "XOAUTH2"
OAUTHBEARER = "OAUTHBEARER"
EXTERNAL = "EXTERNAL"
#: The mechanisms whose response has a token. A client may also send the response after an empty
#: challenge.
WITH_TOKEN = (PLAIN, XOAUTH2, OAUTHBEARER)

#: Codes of the SASL outcome (part 5.3.3.6).
OK, AUTH = 0, 1

_SEPARATOR = b"\x01"
_BEARER = b"auth=bearer "


def offered_mechanisms(*, is_required: bool, offers_external: bool) -> tuple[str, ...]:
    """Return the mechanisms that a client may choose.

    `is_required` says whether clients must authenticate, and `offers_external` whether this client
    has shown a certificate, or a token before AMQP began. If clients need not authenticate, PLAIN
    is offered, too, because many programs always send a user and a password.
    """
    if not is_required:
        return ANONYMOUS, PLAIN
    return (EXTERNAL, *WITH_TOKEN) if offers_external else WITH_TOKEN


def token_in(mechanism: str, response: bytes) -> str | None:
    """Return the token in a response to a mechanism of WITH_TOKEN; None if it has none."""
    if mechanism == PLAIN:
        parts = response.split(b"\x00")
        found = parts[2] if len(parts) == 3 else b""
    else:
        fields = response.split(_SEPARATOR)
        with_token = [each for each in fields if each[: len(_BEARER)].lower() == _BEARER]
        found = with_token[0][len(_BEARER) :].strip() if len(with_token) == 1 else b""
    try:
        return found.decode("ascii") or None
    except UnicodeDecodeError:
        return None


class _Failures(msgspec.Struct):
    second: int
    count: int


class FailureLimit:
    """Slows down clients that fail to authenticate. After `most` failures of a client in one
    second, each further answer waits one second. At most `clients` clients are remembered."""

    def __init__(self, most: int = 3, clients: int = 10_000) -> None:
        self._most = most
        self._clients = clients
        self._failures: OrderedDict[str, _Failures] = OrderedDict()

    def delay_s(self, client: str, now_s: float) -> float:
        """Count a failure of a client; return how long the answer must wait."""
        second = int(now_s)
        failures = self._failures.get(client)
        if failures is None or failures.second != second:
            failures = self._failures[client] = _Failures(second, 0)
        self._failures.move_to_end(client)
        if len(self._failures) > self._clients:
            self._failures.popitem(last=False)
        failures.count += 1
        return 1.0 if failures.count > self._most else 0.0
