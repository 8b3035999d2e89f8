"""Encodes and decodes the token file. Pure. FORMAT.md describes the format, too.

    holdfast-tokens-1 1A2B3C4D\\n      format and version; CRC-32C of all following bytes, in hex
    {"generation": 7, "tokens": [     the generation grows by one with each change
      {"id": "0f3a...", "name": "billing", "grants": ["consume:orders.:billing-"],
       "created_ms": 1790000000000, "expires_ms": null, "sha256": "9c...", "certificate": ""}]}

The file is text, so that people can read it. The checksum detects damage and manual changes.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from holdfast.commitlog.format.checksum import crc32c
from holdfast.http_api.access.grants import Grant, InvalidGrant, parse_grants
from holdfast.http_api.access.tokens import TOKEN_ID, Token

FORMAT = b"holdfast-tokens-1"
#: The format of a file in which a token has its own publish rates. Older versions reject the file.
FORMAT_WITH_RATES = b"holdfast-tokens-2"
_HEAD_BYTES = len(FORMAT) + 10


@dataclass(eq=False, repr=False)
class DamagedTokens(Exception):
    """The bytes are not an intact token file. `reason` explains why."""

    reason: str

    def __str__(self) -> str:
        return self.reason


class TokenFileContent(msgspec.Struct, frozen=True):
    """The content of one copy of the file. Readers use the copy with the higher generation."""

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


class _EntryWithRates(_Entry, forbid_unknown_fields=True):
    publish_messages_per_s: int | None
    publish_bytes_per_s: int | None


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    generation: int
    tokens: list[_Entry]


class _DocumentWithRates(msgspec.Struct, forbid_unknown_fields=True):
    generation: int
    tokens: list[_EntryWithRates]


def encode_tokens(content: TokenFileContent) -> bytes:
    has_rates = any(token.publish_rates is not None for token in content.tokens)
    entries = [
        _EntryWithRates(*_values(token), *(token.publish_rates or (None, None)))
        if has_rates
        else _Entry(*_values(token))
        for token in content.tokens
    ]
    document = {"generation": content.generation, "tokens": entries}
    body = msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"
    return b"%s %08X\n" % (FORMAT_WITH_RATES if has_rates else FORMAT, crc32c(body)) + body


def decode_tokens(data: bytes) -> TokenFileContent:
    """Return the content of a file. Raises DamagedTokens if the file is not intact."""
    head, body = data[:_HEAD_BYTES], data[_HEAD_BYTES:]
    if len(head) < _HEAD_BYTES or head[len(FORMAT) : -9] != b" " or head[-1:] != b"\n":
        raise DamagedTokens("its first line is not that of a token file")
    if not head.startswith((FORMAT, FORMAT_WITH_RATES)):
        raise DamagedTokens(
            f"its first line is {head[: len(FORMAT)]!r}, and this version knows only {FORMAT!r} "
            f"and {FORMAT_WITH_RATES!r}"
        )
    if head[-9:-1] != b"%08X" % crc32c(body):
        raise DamagedTokens("its checksum does not match")
    try:
        type_: type[_Document | _DocumentWithRates] = (
            _Document if head.startswith(FORMAT) else _DocumentWithRates
        )
        document = msgspec.json.decode(body, type=type_)
        tokens = tuple(map(_token, document.tokens))
    except (msgspec.DecodeError, InvalidGrant, ValueError) as error:
        raise DamagedTokens(str(error)) from error
    return TokenFileContent(document.generation, tokens)


def _values(token: Token) -> tuple[str, str, list[str], int, int | None, str, str]:
    return (
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
        raise ValueError(f"the token {entry.id[:40]!r} is incomplete")
    rates = None
    if isinstance(entry, _EntryWithRates):
        rates = (entry.publish_messages_per_s, entry.publish_bytes_per_s)
        if any(each is not None and each < 0 for each in rates):
            raise ValueError(f"the token {entry.id[:40]!r} has a rate below 0")
    return Token(
        entry.id,
        entry.name,
        tuple(_grants(entry.grants)),
        entry.created_ms,
        entry.expires_ms,
        digest,
        entry.certificate,
        None if rates == (None, None) else rates,
    )


def _grants(texts: Iterable[str]) -> Iterable[Grant]:
    return (grant for text in texts for grant in parse_grants(text))
