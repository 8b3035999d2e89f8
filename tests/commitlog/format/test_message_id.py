import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.commitlog.format.message_id import format_message_id, parse_message_id


def test_an_id_is_32_digits_in_a_fixed_order() -> None:
    assert format_message_id(7, 2, 1000) == "000000070000000200000000000003E8"


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**63 - 1))
def test_round_trip(topic_id: int, queue: int, offset: int) -> None:
    text = format_message_id(topic_id, queue, offset)
    assert len(text) == 32
    assert parse_message_id(text) == (topic_id, queue, offset)
    assert parse_message_id(text.lower()) == (topic_id, queue, offset)


@given(st.tuples(*[st.integers(0, 2**32 - 1)] * 3), st.tuples(*[st.integers(0, 2**32 - 1)] * 3))
def test_ids_sort_by_topic_queue_and_offset(
    one: tuple[int, int, int], other: tuple[int, int, int]
) -> None:
    assert (format_message_id(*one) < format_message_id(*other)) == (one < other)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0" * 31,
        "0" * 33,
        "0" * 31 + "G",
        "0" * 31 + "\n",
        "0" * 30 + "_0",
        "+" + "0" * 31,
        "0x" + "0" * 30,
        " " + "0" * 31,
        "\u0660" * 32,  # digits, but not ASCII
        "../" * 10 + "..",
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="32 hexadecimal digits"):
        parse_message_id(text)


def test_an_error_quotes_only_the_start_of_a_long_text() -> None:
    with pytest.raises(ValueError, match="not 'x") as raised:
        parse_message_id("x" * 10_000)
    assert len(str(raised.value)) < 200
