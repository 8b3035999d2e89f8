from datetime import UTC, datetime
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow", reason="no pyarrow here (pip install 'holdfast[arrow]')")

from holdfast.client.tables.bodies import BadBody, body_type, convert_bodies  # noqa: E402

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("tags", pa.list_(pa.string()))])


def column(*bodies: bytes) -> Any:
    return pa.array(bodies, pa.binary())


def test_text_shares_the_bytes_of_the_bodies() -> None:
    bodies = column(b"abc", b"", "é".encode())
    text = convert_bodies(bodies, "text")
    assert text.type == pa.string()
    assert text.to_pylist() == ["abc", "", "é"]
    assert text.buffers()[2].address == bodies.buffers()[2].address


def test_binary_is_the_same_column() -> None:
    bodies = column(b"\xff", b"")
    assert convert_bodies(bodies, "binary") is bodies


def test_json_becomes_structs_of_the_schema() -> None:
    bodies = column(
        b'{"id": 1, "name": "a", "tags": ["x", "y"]}',
        b' \n{"name":\n"b", "id": 2, "other": {"more": [1]}}\n',
        b"null",
        b"{}",
    )
    parsed = convert_bodies(bodies, SCHEMA)
    parsed.validate(full=True)
    assert parsed.type == body_type(SCHEMA)
    assert parsed.to_pylist() == [
        {"id": 1, "name": "a", "tags": ["x", "y"]},
        {"id": 2, "name": "b", "tags": None},
        None,
        {"id": None, "name": None, "tags": None},
    ]
    nothing = convert_bodies(column(), SCHEMA)
    assert (len(nothing), nothing.type) == (0, body_type(SCHEMA))


def test_json_has_the_types_that_the_schema_names() -> None:
    schema = pa.schema(
        [
            ("at", pa.timestamp("us", tz="UTC")),
            ("price", pa.float64()),
            ("inner", pa.struct([("deep", pa.int32())])),
        ]
    )
    (row,) = convert_bodies(
        column(b'{"at": "2026-01-02T03:04:05Z", "price": 1, "inner": {"deep": 7, "x": 1}}'), schema
    ).to_pylist()
    assert row == {
        "at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        "price": 1.0,
        "inner": {"deep": 7},
    }


def test_a_large_body_is_parsed() -> None:
    name = "n" * 3_000_000
    bodies = column(*[b'{"id": %d, "name": "%s"}' % (row, name.encode()) for row in range(3)])
    assert [row["id"] for row in convert_bodies(bodies, SCHEMA).to_pylist()] == [0, 1, 2]


@pytest.mark.parametrize(
    ("bodies", "row"),
    [
        ([b'{"id": 1}', b"", b'{"id": 2}'], 1),
        ([b'{"id": 1}', b'{"id": "x"}'], 1),
        ([b"not JSON"], 0),
        ([b'{"id": 1}'] * 50 + [b"7"] + [b'{"id": 1}'] * 50, 50),
        # Each pair has as many values as bodies, but they are in the wrong places.
        ([b'{"id": 1}{"id": 2}', b" "], 0),
        ([b'{"id":', b'1}{"id": 2}'], 0),
        # This body tries to close the object that surrounds it.
        ([b'{"id": 1}}\n{"row": 1, "body": {"id": 3}', b'{"id": 2}'], 0),
        ([b'{"id": 1}, "row": 7, "x": {}', b'{"id": 2}'], 0),
    ],
)
def test_the_first_body_that_is_not_json_of_the_schema_is_named(
    bodies: list[bytes], row: int
) -> None:
    with pytest.raises(BadBody, match="is not JSON of the schema") as error:
        convert_bodies(column(*bodies), SCHEMA)
    assert error.value.row == row


def test_the_first_body_that_is_not_text_is_named() -> None:
    with pytest.raises(BadBody, match="is not UTF-8") as error:
        convert_bodies(column(b"a", b"\xff", b"\xfe"), "text")
    assert error.value.row == 1


def test_an_unknown_form_is_refused() -> None:
    with pytest.raises(ValueError, match=r'"binary", "text" or a pyarrow\.Schema'):
        body_type("json")
