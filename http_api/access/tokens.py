"""Access tokens: their text, their stored form, and the search for the token of a request. Pure.

The text of a token is `holdfast_ID.SECRET`: an id of 12 hexadecimal digits, for lists and logs, and
a secret of 43 characters (256 random bits). The broker stores only the SHA-256 of the whole text. A
slow hash is unnecessary, because 256 random bits cannot be guessed, and it would slow down
requests. An entry may have the name of a certificate instead of a hash. Such an entry admits
clients that show this certificate, if TLS is configured to ask for client certificates.
"""

import re
from base64 import urlsafe_b64encode
from collections.abc import Iterable
from hashlib import sha256
from hmac import compare_digest
from urllib.parse import unquote

import msgspec

from holdfast.http_api.access.grants import Grant, Principal

ID_BYTES = 6
SECRET_BYTES = 32

_TOKEN = re.compile(r"holdfast_([0-9a-f]{12})\.[A-Za-z0-9_-]{43}", re.ASCII)
#: Finds a token in a text, also a truncated token or a token with a suffix. Only the first group of
#: this expression may be logged.
_SECRET = re.compile(r"(holdfast_[0-9a-f]{12})\.[A-Za-z0-9_-]+", re.ASCII)
TOKEN_ID = re.compile(r"[0-9a-f]{12}", re.ASCII)

#: If a token does not exist, its hash is compared with this, so that the check takes as long.
_NO_DIGEST = bytes(32)


class Token(msgspec.Struct, frozen=True):
    """The stored form of one token. Times are in milliseconds since 1970.

    If `expires_ms` is None, the token never expires. Either `digest` or `certificate` is set, and
    the other of the two is empty.
    """

    token_id: str
    name: str
    grants: tuple[Grant, ...]
    created_ms: int
    expires_ms: int | None = None
    digest: bytes = b""
    certificate: str = ""
    publish_rates: tuple[int | None, int | None] | None = None
    """Messages per second, and bytes per second, that the token's holder may publish.

    In each of the two places, 0 means no limit, and None means the configured limit.
    """

    @property
    def principal(self) -> Principal:
        """The principal (caller) of requests with this token."""
        return Principal(f"token:{self.token_id}", self.grants, self.publish_rates)

    def is_expired(self, now_ms: float) -> bool:
        return self.expires_ms is not None and now_ms >= self.expires_ms


def redact_secrets(text: str) -> str:
    """Return `text` without secrets, so that it may be logged: each token is reduced to its id.

    Percent-encoded tokens are found, too.
    """
    if "%" in text:
        plain = unquote(text)
        if _SECRET.search(plain):
            return _SECRET.sub(r"\1.(secret)", plain)
    return _SECRET.sub(r"\1.(secret)", text) if "holdfast_" in text else text


def token_text(token_id: str, secret: bytes) -> str:
    """Return the text of a token, made from its id and SECRET_BYTES random bytes."""
    return f"holdfast_{token_id}.{urlsafe_b64encode(secret).rstrip(b'=').decode()}"


def digest_of(text: str) -> bytes:
    """Return the digest that is stored for a token's text."""
    return sha256(text.encode()).digest()


class Tokens:
    """All tokens, with searches by text, by certificate name and by principal. Immutable."""

    def __init__(self, tokens: Iterable[Token] = ()) -> None:
        self.all = tuple(tokens)
        known = [(token, token.principal) for token in self.all]
        self._by_principal = {principal.name: token for token, principal in known}
        self._by_id = {token.token_id: (token, who) for token, who in known if token.digest}
        self._by_certificate = {
            token.certificate: (token, who) for token, who in known if token.certificate
        }

    def __len__(self) -> int:
        return len(self.all)

    def find(self, text: str) -> tuple[Token, Principal] | None:
        """Return the token with this text, expired or not, and its principal.

        Return None if there is no such token. This takes as long for an unknown id as for a wrong
        secret, so the time reveals no ids.
        """
        matched = _TOKEN.fullmatch(text)
        if matched is None:
            return None
        found = self._by_id.get(matched[1])
        digest = found[0].digest if found is not None else _NO_DIGEST
        return found if compare_digest(digest, digest_of(text)) else None

    def find_certificate(self, names: Iterable[str]) -> tuple[Token, Principal] | None:
        """Return the entry of the first name in `names` that has an entry, expired or not.

        Return None if no name has an entry.
        """
        return next((found for each in names if (found := self._by_certificate.get(each))), None)

    def find_principal(self, name: str, now_ms: float) -> Principal | None:
        """Return the principal with this name; None if its token is unknown or has expired."""
        token = self._by_principal.get(name)
        return None if token is None or token.is_expired(now_ms) else token.principal

    def expires_ms(self, principal: Principal) -> int | None:
        """Return when the token of `principal` expires; None if never, or if it was revoked."""
        token = self._by_principal.get(principal.name)
        return None if token is None else token.expires_ms

    def is_still_valid(self, principal: Principal, now_ms: float) -> bool:
        """Return whether the token of `principal` still exists and has not expired."""
        token = self._by_principal.get(principal.name)
        return token is not None and not token.is_expired(now_ms)
