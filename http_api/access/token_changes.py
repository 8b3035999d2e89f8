"""Creates and revokes tokens in a token file. Each function blocks until the change is durable."""

import secrets
from collections.abc import Iterable

from holdfast.http_api.access.grants import Grant
from holdfast.http_api.access.token_file import TokenFile
from holdfast.http_api.access.tokens import (
    ID_BYTES,
    SECRET_BYTES,
    Token,
    digest_of,
    token_text,
)


class UnknownToken(Exception):
    """No token has this id."""

    def __init__(self, token_id: str) -> None:
        super().__init__(token_id)
        self.token_id = token_id

    def __str__(self) -> str:
        return (
            f"there is no token {self.token_id[:40]!r}, and nothing was revoked; 'holdfast token "
            "list' shows the ids"
        )


class CertificateTaken(Exception):
    """The token file already has an entry for this certificate name."""

    def __init__(self, certificate: str, token_id: str) -> None:
        super().__init__(certificate, token_id)
        self.certificate = certificate
        self.token_id = token_id

    def __str__(self) -> str:
        return (
            f"the certificate of {self.certificate[:200]!r} has grants as {self.token_id}; revoke "
            "that one first"
        )


def create_token(
    file: TokenFile,
    *,
    name: str,
    grants: Iterable[Grant],
    now_ms: int,
    expires_ms: int | None = None,
    certificate: str = "",
    publish_rates: tuple[int | None, int | None] | None = None,
) -> tuple[Token, str]:
    """Add a token. Return the token, and its text, which is not stored and cannot be read later.

    With `certificate`, the entry is for a client certificate, and the text is empty. Raises
    CertificateTaken, and the errors of TokenFile.change.
    """
    token_id = secrets.token_hex(ID_BYTES)
    text = "" if certificate else token_text(token_id, secrets.token_bytes(SECRET_BYTES))
    token = Token(
        token_id,
        name,
        tuple(dict.fromkeys(grants)),
        now_ms,
        expires_ms,
        b"" if certificate else digest_of(text),
        certificate,
        publish_rates,
    )

    def add_token(tokens: tuple[Token, ...]) -> tuple[Token, ...]:
        for other in tokens:
            if certificate and other.certificate == certificate:
                raise CertificateTaken(certificate, other.token_id)
            assert other.token_id != token_id, "of 2**48 ids the same one twice"
        return (*tokens, token)

    file.change(add_token)
    return token, text


def revoke_tokens(file: TokenFile, token_ids: Iterable[str]) -> list[Token]:
    """Remove the tokens with these ids and return them.

    Raises UnknownToken, and the errors of TokenFile.change. In case of an error, no token is
    removed.
    """
    revoked: list[Token] = []

    def remove_tokens(tokens: tuple[Token, ...]) -> tuple[Token, ...]:
        by_id = {token.token_id: token for token in tokens}
        for token_id in dict.fromkeys(token_ids):
            if token_id not in by_id:
                raise UnknownToken(token_id)
            revoked.append(by_id.pop(token_id))
        return tuple(by_id.values())

    file.change(remove_tokens)
    return revoked
