"""Access tokens: how they are written, what is kept of them, which one a text is. Pure.

A token is `holdfast_ID.SECRET`: 12 hexadecimal digits that name it in lists and logs, and 43 signs
of secret (256 random bits). Kept is the SHA-256 of the whole text: nobody guesses 256 bits, so a
slow hash would only slow the requests. An entry with a certificate's name in place of a hash lets
in whoever shows that certificate, where the broker asks for one.
"""

import re
from base64 import urlsafe_b64encode
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from hmac import compare_digest

from holdfast.http_api.access.grants import Grant, Principal

ID_BYTES = 6
SECRET_BYTES = 32
MAX_NAME_CHARACTERS = 200

_TOKEN = re.compile(r"holdfast_([0-9a-f]{12})\.[A-Za-z0-9_-]{43}", re.ASCII)
TOKEN_ID = re.compile(r"[0-9a-f]{12}", re.ASCII)

#: What a secret is compared with when there is no such token: that takes as long.
_NO_DIGEST = bytes(32)


@dataclass(frozen=True, slots=True)
class Token:
    """What is kept of one token. Times are milliseconds since 1970; `expires_ms` None: never.

    Either `digest` or `certificate` is set, the other is empty.
    """

    token_id: str
    name: str
    grants: tuple[Grant, ...]
    created_ms: int
    expires_ms: int | None = None
    digest: bytes = b""
    certificate: str = ""

    @property
    def principal(self) -> Principal:
        """Who shows it."""
        return Principal(f"token:{self.token_id}", self.grants)

    def is_expired(self, now_ms: float) -> bool:
        """Whether its time is over."""
        return self.expires_ms is not None and now_ms >= self.expires_ms


def token_text(token_id: str, secret: bytes) -> str:
    """Return the text that is shown to the broker, of an id and SECRET_BYTES random bytes."""
    return f"holdfast_{token_id}.{urlsafe_b64encode(secret).rstrip(b'=').decode()}"


def digest_of(text: str) -> bytes:
    """Return what is kept of a token's text."""
    return sha256(text.encode()).digest()


class Tokens:
    """Every token that there is, to find by what a request shows. Immutable."""

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
        """Return the token that `text` is, expired or not, and who shows it; None if it is none.

        Takes as long for a wrong secret as for an id that does not exist.
        """
        matched = _TOKEN.fullmatch(text)
        if matched is None:
            return None
        found = self._by_id.get(matched[1])
        digest = found[0].digest if found is not None else _NO_DIGEST
        return found if compare_digest(digest, digest_of(text)) else None

    def find_certificate(self, names: Iterable[str]) -> tuple[Token, Principal] | None:
        """Return the entry of the first of a certificate's names that has one, expired or not."""
        return next((found for each in names if (found := self._by_certificate.get(each))), None)

    def still_hold(self, principal: Principal, now_ms: float) -> bool:
        """Whether the token that `principal` was found by is there yet, and not expired."""
        token = self._by_principal.get(principal.name)
        return token is not None and not token.is_expired(now_ms)
