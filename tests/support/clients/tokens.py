"""Access tokens for tests, created without a file, with known texts."""

import time
from itertools import count

from holdfast.http_api.access.authorization import Access
from holdfast.http_api.access.grants import parse_grants
from holdfast.http_api.access.tokens import Token, Tokens, digest_of, token_text
from tests.support.servers.api_server import Api

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
    """Return an Access that requires one of these tokens."""
    return Access(is_required=True, tokens=Tokens(tokens), now_s=time.time)


def bearer(text: str) -> dict[str, str]:
    """Return the header that sends a token."""
    return {"Authorization": f"Bearer {text}"}


def let_in(api: Api, *grants: str) -> dict[str, str]:
    """Require a token from now on; return the header of the token with these grants."""
    token, text = make_token(*grants)
    api.context.http.access = access_of(token)
    return bearer(text)
