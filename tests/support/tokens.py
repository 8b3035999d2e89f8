"""Access tokens for tests: made without a file, with texts that are known."""

import time
from itertools import count

from holdfast.http_api.access.door import Access
from holdfast.http_api.access.grants import parse_grants
from holdfast.http_api.access.tokens import Token, Tokens, digest_of, token_text

_numbers = count(1)


def make_token(
    *grants: str, expires_ms: int | None = None, certificate: str = ""
) -> tuple[Token, str]:
    """Return a new token and its text."""
    number = next(_numbers)
    token_id = f"{number:012x}"
    text = token_text(token_id, number.to_bytes(32, "big"))
    parsed = tuple(grant for each in grants for grant in parse_grants(each))
    digest = b"" if certificate else digest_of(text)
    return Token(token_id, "", parsed, 0, expires_ms, digest, certificate), text


def access_of(*tokens: Token) -> Access:
    """Return a door that asks for one of these tokens."""
    return Access(is_required=True, tokens=Tokens(tokens), now_s=time.time)


def bearer(text: str) -> dict[str, str]:
    """Return the header that shows a token."""
    return {"Authorization": f"Bearer {text}"}
