"""Receipts as text: fixed bytes, round trips, every truncation and every flipped bit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.groups.core.receipts import Receipt, ReceiptCodec
from holdfast.groups.errors import InvalidReceipt

CODEC = ReceiptCodec(bytes(range(32)))
RECEIPT = Receipt(3, 7, 2, 1_000, (5 << 40) + 9, 4, 1_700_000_000_000, 2, "m1")
TEXT = "AQAAAAMAAAAHAAAAAgAAAAAAAAPoAAAFAAAAAAkAAAAEAAABi8_laAAAAm0x2U11o5ZB5Q7rnEAX_HnBjA"


def test_the_text_is_pinned() -> None:
    assert CODEC.encode(RECEIPT) == TEXT


@given(
    numbers=st.tuples(*[st.integers(0, 2**32 - 1)] * 3),
    large=st.tuples(*[st.integers(0, 2**63 - 1)] * 3),
    attempt=st.integers(1, 65_535),
    member=st.text(st.characters(exclude_categories=["Cs"]), max_size=31),
)
def test_a_receipt_survives_a_round_trip(
    numbers: tuple[int, int, int], large: tuple[int, int, int], attempt: int, member: str
) -> None:
    receipt = Receipt(*numbers, large[0], large[1], 1, large[2], attempt, member)
    assert CODEC.decode(CODEC.encode(receipt)) == receipt


def test_truncated_changed_and_other_texts_are_refused() -> None:
    texts = {TEXT[:at] + each + TEXT[at + 1 :] for at in range(len(TEXT)) for each in "A_=é\n"}
    texts |= {TEXT[:size] for size in range(len(TEXT))}
    texts |= {"a", "ä" * 100, "A" * 10_000, TEXT + "=", TEXT + "A"}
    for text in texts - {TEXT}:
        with pytest.raises(InvalidReceipt):
            CODEC.decode(text)


def test_another_key_is_refused() -> None:
    with pytest.raises(InvalidReceipt):
        ReceiptCodec(bytes(32)).decode(TEXT)


def test_an_attempt_beyond_its_field_is_stored_as_the_largest() -> None:
    text = CODEC.encode(replace(RECEIPT, attempt=70_000))
    assert CODEC.decode(text).attempt == 65_535
