"""The bytes of the token file. Pure. FORMAT.md draws them too.

    holdfast-tokens-1 1A2B3C4D\\n      format and version; CRC-32C of all that follows, in hex
    {"generation": 7, "tokens": [     grows by one with each change
      {"id": "0f3a...", "name": "billing", "grants": ["consume:orders.:billing-"],
       "created_ms": 1790000000000, "expires_ms": null, "sha256": "9c...", "certificate": ""}]}

Text, so that it can be looked at; the checksum tells a flipped bit from a change by hand.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from holdfast.commitlog.checksum import crc32c
from holdfast.http_api.access.grants import Grant, InvalidGrant, parse_grants
from holdfast.http_api.access.tokens import TOKEN_ID, Token

FORMAT = b"holdfast-tokens-1"
_HEAD_BYTES = len(FORMAT) + 10


class DamagedTokens(Exception):
    """Bytes that are no whole token file. `reason` says where that shows."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


@dataclass(frozen=True, slots=True)
class TokenFileContent:
    """What one copy of the file says. Of two copies the one of the higher generation counts."""

    generation: int
    tokens: tuple[Token, ...]


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    name: str
    grants: list[str]
    created_ms: int
    expires_ms: int | None
    sha256: str
    certificate: str


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    generation: int
    tokens: list[_Entry]


def encode_tokens(content: TokenFileContent) -> bytes:
    """Return the whole file."""
    document = _Document(content.generation, [_entry(token) for token in content.tokens])
    body = msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"
    return b"%s %08X\n" % (FORMAT, crc32c(body)) + body


def decode_tokens(data: bytes) -> TokenFileContent:
    """Return what a file says. Raises DamagedTokens for anything but a whole, intact one."""
    head, body = data[:_HEAD_BYTES], data[_HEAD_BYTES:]
    if len(head) < _HEAD_BYTES or head[len(FORMAT) : -9] != b" " or head[-1:] != b"\n":
        raise DamagedTokens("its first line is none of a token file")
    if not head.startswith(FORMAT):
        raise DamagedTokens(
            f"its first line is {head[: len(FORMAT)]!r}, and this version knows {FORMAT!r} alone"
        )
    if head[-9:-1] != b"%08X" % crc32c(body):
        raise DamagedTokens("its checksum does not fit")
    try:
        document = msgspec.json.decode(body, type=_Document)
        tokens = tuple(map(_token, document.tokens))
    except (msgspec.DecodeError, InvalidGrant, ValueError) as error:
        raise DamagedTokens(str(error)) from error
    return TokenFileContent(document.generation, tokens)


def _entry(token: Token) -> _Entry:
    return _Entry(
        token.token_id,
        token.name,
        [str(grant) for grant in token.grants],
        token.created_ms,
        token.expires_ms,
        token.digest.hex(),
        token.certificate,
    )


def _token(entry: _Entry) -> Token:
    digest = bytes.fromhex(entry.sha256)
    if not TOKEN_ID.fullmatch(entry.id) or len(digest) != (0 if entry.certificate else 32):
        raise ValueError(f"the token {entry.id[:40]!r} is not whole")
    return Token(
        entry.id,
        entry.name,
        tuple(_grants(entry.grants)),
        entry.created_ms,
        entry.expires_ms,
        digest,
        entry.certificate,
    )


def _grants(texts: Iterable[str]) -> Iterable[Grant]:
    return (grant for text in texts for grant in parse_grants(text))
