"""Making and revoking tokens in a data directory's token file. Each blocks until it is durable."""

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
    """The certificate's name has grants already."""

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
) -> tuple[Token, str]:
    """Add a token and return it, with the one text of it that there will ever be; that is empty
    for a certificate's. Raises CertificateTaken, and what TokenFile.change does."""
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
    )

    def with_it(tokens: tuple[Token, ...]) -> tuple[Token, ...]:
        for other in tokens:
            if certificate and other.certificate == certificate:
                raise CertificateTaken(certificate, other.token_id)
            assert other.token_id != token_id, "of 2**48 ids the same one twice"
        return (*tokens, token)

    file.change(with_it)
    return token, text


def revoke_tokens(file: TokenFile, token_ids: Iterable[str]) -> list[Token]:
    """Remove tokens and return them: all of these ids, or none. Raises UnknownToken, and what
    TokenFile.change does."""
    revoked: list[Token] = []

    def without(tokens: tuple[Token, ...]) -> tuple[Token, ...]:
        by_id = {token.token_id: token for token in tokens}
        for token_id in dict.fromkeys(token_ids):
            if token_id not in by_id:
                raise UnknownToken(token_id)
            revoked.append(by_id.pop(token_id))
        return tuple(by_id.values())

    file.change(without)
    return revoked
