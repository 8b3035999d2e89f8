import hashlib
from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.http_api.access.grants import parse_grants
from holdfast.http_api.access.token_format import (
    DamagedTokens,
    TokenFileContent,
    decode_tokens,
    encode_tokens,
)
from holdfast.http_api.access.tokens import Token, Tokens, digest_of, redact_secrets, token_text
from tests.support.clients.tokens import make_token

SECRET = bytes(range(32))
TEXT = "holdfast_0123456789ab.AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8"
GOLDEN = """\
holdfast-tokens-1 E9668CBF
{
 "generation": 7,
 "tokens": [
  {
   "id": "0123456789ab",
   "name": "billing",
   "grants": [
    "consume:orders.:billing-"
   ],
   "created_ms": 1790000000000,
   "expires_ms": 1800000000000,
   "sha256": "%s",
   "certificate": ""
  },
  {
   "id": "0000000000ff",
   "name": "",
   "grants": [
    "operate"
   ],
   "created_ms": 1790000000001,
   "expires_ms": null,
   "sha256": "",
   "certificate": "metrics.example"
  }
 ]
}
"""
CONTENT = TokenFileContent(
    7,
    (
        Token(
            "0123456789ab",
            "billing",
            parse_grants("consume:orders.:billing-"),
            1_790_000_000_000,
            1_800_000_000_000,
            digest_of(TEXT),
        ),
        Token(
            "0000000000ff",
            "",
            parse_grants("operate"),
            1_790_000_000_001,
            certificate="metrics.example",
        ),
    ),
)


def test_a_token_is_its_id_and_its_secret() -> None:
    assert token_text("0123456789ab", SECRET) == TEXT
    assert digest_of(TEXT) == hashlib.sha256(TEXT.encode()).digest()


def test_a_token_is_found_only_by_its_whole_text() -> None:
    token, text = make_token("all")
    other, other_text = make_token("operate")
    tokens = Tokens([token, other])
    found = tokens.find(text)
    assert found is not None
    assert found[0] is token
    assert found[1].name == f"token:{token.token_id}"
    head, _, secret = text.partition(".")
    for wrong in (
        "", head, f"{head}.", secret, text[:-1], text + "A", f" {text}", text.upper(),
        f"{head}.{other_text.partition('.')[2]}", f"{other_text.partition('.')[0]}.{secret}",
        text.replace("holdfast_", "hf_"), text.replace(".", ":"), f"{text}\n",
    ):  # fmt: skip
        assert tokens.find(wrong) is None, wrong


def test_an_entry_of_a_certificate_has_no_token() -> None:
    token, text = make_token("all", certificate="client.example")
    tokens = Tokens([token])
    assert tokens.find(text) is None
    assert tokens.find_certificate(["a", "client.example"]) is not None
    assert tokens.find_certificate(["client.exampl", ""]) is None


@pytest.mark.parametrize(("now_ms", "is_expired"), [(999, False), (1000, True), (1001, True)])
def test_a_token_expires_at_its_time(now_ms: int, is_expired: bool) -> None:
    token, _ = make_token("all", expires_ms=1000)
    assert token.is_expired(now_ms) is is_expired
    assert Tokens([token]).is_still_valid(token.principal, now_ms) is not is_expired
    assert not replace(token, expires_ms=None).is_expired(2**62)


def test_the_file_is_as_format_md_draws_it() -> None:
    body = GOLDEN % digest_of(TEXT).hex()
    assert encode_tokens(CONTENT).decode() == body
    assert decode_tokens(body.encode()) == CONTENT
    page = (Path(__file__).parents[3] / "FORMAT.md").read_text("utf-8")
    assert "holdfast-tokens-1" in page


def test_every_truncated_file_is_damaged() -> None:
    data = encode_tokens(CONTENT)
    for size in range(len(data)):
        with pytest.raises(DamagedTokens):
            decode_tokens(data[:size])
    with pytest.raises(DamagedTokens):
        decode_tokens(data + b"\n")


def test_every_flipped_bit_is_detected() -> None:
    data = encode_tokens(CONTENT)
    for at in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[at // 8] ^= 1 << at % 8
        with pytest.raises(DamagedTokens):
            decode_tokens(bytes(flipped))


def test_a_file_of_a_newer_version_is_refused() -> None:
    newer = encode_tokens(CONTENT).replace(b"holdfast-tokens-1", b"holdfast-tokens-3")
    with pytest.raises(DamagedTokens, match="this version knows"):
        decode_tokens(newer)


def test_a_file_with_an_invalid_token_is_damaged() -> None:
    for wrong in (
        replace(CONTENT.tokens[0], token_id="x"),
        replace(CONTENT.tokens[0], digest=b""),
        replace(CONTENT.tokens[1], digest=bytes(32)),
    ):
        with pytest.raises(DamagedTokens, match="is incomplete"):
            decode_tokens(encode_tokens(TokenFileContent(1, (wrong,))))


@pytest.mark.parametrize(
    ("text", "logged"),
    [
        (f"/v1/{TEXT}", "/v1/holdfast_0123456789ab.(secret)"),
        (f"/{TEXT}/x{TEXT}", "/holdfast_0123456789ab.(secret)/xholdfast_0123456789ab.(secret)"),
        (f"/{TEXT[:40]}", "/holdfast_0123456789ab.(secret)"),
        (f"/a%20b/{TEXT.replace('_', '%5F', 1)}", "/a b/holdfast_0123456789ab.(secret)"),
        ("/v1/topics/a%20b", "/v1/topics/a%20b"),
        ("/v1/topics/holdfast_orders.x", "/v1/topics/holdfast_orders.x"),
    ],
)
def test_a_log_shows_only_the_id_of_a_token(text: str, logged: str) -> None:
    assert redact_secrets(text) == logged
    assert TEXT[21:] not in redact_secrets(text)
