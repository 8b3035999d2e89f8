"""Fuzz the filters: each text is refused with a message, or is a filter that works.

A working filter finds the same rows, in order, at once and one at a time, and spends no longer on a
message than its limits allow; the fuzzer's own timeout checks that. The input is a condition's
text, optionally preceded by a list of tags and a NUL byte.
"""

from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.batch_encoding import encode_batch
from holdfast.holdservice.errors import InvalidFilter
from holdfast.holdservice.filters import parse_filter
from holdfast.http_api.wire.problems import problem_for

DICTIONARY = [
    *("AND", "OR", "NOT", "IN", "LIKE", "BETWEEN", "IS", "NULL", "TRUE", "FALSE", "ESCAPE"),
    *("TAGS", "KEYS", "(", ")", ",", "=", "<>", "<=", ">=", "!=", "'%a%'", "'_'", "''", "`a`"),
    *("1", "-1.5e3", ".5", "1e999", "'1e999'", "a", "b", "c"),
]


def seeds() -> list[bytes]:
    """Return an example of every element of the filter language."""
    conditions = [
        "a = 'x' AND b <> 3 OR NOT (c >= 1.5e3)",
        "a BETWEEN 1 AND 9 AND b NOT BETWEEN -2 AND +.5",
        "a IN ('x', 1, TRUE) OR `b` NOT IN (2)",
        "a LIKE '%x_%' OR b NOT LIKE 'a!%' ESCAPE '!'",
        "a IS NULL AND TAGS IS NOT NULL OR KEYS = 'k'",
        "(((a = 1)))",
        "NOT NOT a",
        "a = 'it''s'",
        "a LIKE '%a%a%a%a%b'",
        "a = " + "9" * 100,
    ]
    return [*map(str.encode, conditions), b"red,blue\0", b"red||blue\0a = 1", b"*\0", b",\0"]


def _messages() -> Batch:
    values = [
        {"a": "x", "b": "3", "c": "1500.5"},
        {"a": "1e999", "b": "-0", "c": "TRUE"},
        {"a": "9" * 5000, "b": "1_0", "c": "\u0661"},
        {"a": "a" * 4096, "b": "", "c": "false"},
        {"é\u202e": "\0", "a": "+.5", "b": "."},
        {},
    ]
    return Batch.decode(
        encode_batch(
            [b""] * len(values),
            properties=values,
            keys=["k", None, "9", None, "é", None],
            tags=["red", "blue", None, "1", None, "red"],
        )
    )


_BATCH = _messages()


def check(data: bytes) -> None:
    """Raise for any behaviour that a filter must not show."""
    tag_bytes, nul, condition = data.rpartition(b"\0")
    tag = tag_bytes.decode(errors="surrogateescape") if nul else None
    text = condition.decode(errors="surrogateescape") if condition or not nul else None
    try:
        message_filter = parse_filter.__wrapped__(tag, text)
    except InvalidFilter as error:
        assert problem_for(error).encode()
        assert error.position is None or 0 <= error.position <= max(len(text or ""), len(tag or ""))
        return
    if message_filter is None:
        return
    count = len(_BATCH)
    found = list(message_filter.matching_rows(_BATCH, 0, count))
    one_by_one = [
        row for row in range(count) if list(message_filter.matching_rows(_BATCH, row, row + 1))
    ]
    assert found == one_by_one
    assert parse_filter(tag, text) == message_filter
    assert hash(message_filter) == hash(parse_filter(tag, text))
