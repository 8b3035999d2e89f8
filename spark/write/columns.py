"""The columns that can be written, and which of them a DataFrame has. Pure.

A column has the name that it has in a read, or the name that it has in Spark's Kafka connector.
Columns that only the broker sets cannot be written.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from holdfast.spark.errors import UnwritableColumn
from holdfast.spark.options.columns import suggest_name

_TEXT = ("string", "binary")
_WHOLE = ("tinyint", "smallint", "int", "bigint")
_TIME = ("timestamp",)

#: Column -> the Spark types that can be written to it.
WRITABLE_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "body": _TEXT,
    "key": _TEXT,
    "tag": _TEXT,
    "properties": ("map<string,string>",),
    "topic": _TEXT,
    "queue": _WHOLE,
    "priority": _WHOLE,
    "born_timestamp": _TIME,
    "expires_timestamp": _TIME,
    "value": _TEXT,
    "partition": _WHOLE,
    "headers": (
        "array<struct<key:string,value:binary>>",
        "array<struct<key:string,value:string>>",
    ),
}
#: Kafka's name -> Holdfast's name.
_KAFKA_NAMES = {"value": "body", "partition": "queue", "headers": "properties"}
_BROKER_COLUMNS = ("offset", "store_timestamp", "message_id", "timestamp", "timestamptype")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the DataFrame: its position, and its name there, for error messages."""

    index: int
    name: str


def choose_columns(schema: Sequence[tuple[str, str]], *, topic_given: bool) -> Mapping[str, Column]:
    """Return the DataFrame's columns by Holdfast's names. `schema` is (name, Spark type) of each
    column. Raises UnwritableColumn for a column that is unknown, of a wrong type, given twice, set
    only by the broker, or missing."""
    found: dict[str, Column] = {}
    for index, (name, kind) in enumerate(schema):
        known = name.lower()
        if known in _BROKER_COLUMNS:
            raise UnwritableColumn(name, f"is set by the broker; omit it with .drop({name!r})")
        if known not in WRITABLE_COLUMNS:
            suggestion = suggest_name(name, WRITABLE_COLUMNS)
            raise UnwritableColumn(name, f"is not part of a message{suggestion}")
        if not _type_fits(kind, WRITABLE_COLUMNS[known]):
            kinds = " or ".join(WRITABLE_COLUMNS[known])
            raise UnwritableColumn(name, f"has type {kind}; cast it to {kinds}")
        own_name = _KAFKA_NAMES.get(known, known)
        if own_name in found:
            other = found[own_name].name
            raise UnwritableColumn(name, f"has the same meaning as {other!r}; omit one of them")
        found[own_name] = Column(index, name)
    if "body" not in found:
        raise UnwritableColumn(
            "body", "is missing; name the column with the contents body or value"
        )
    if "topic" not in found and not topic_given:
        raise UnwritableColumn("topic", "is missing; give the option topic or a column topic")
    return found


def choose_sort_columns(
    schema: Sequence[tuple[str, str]], names: Sequence[str]
) -> tuple[Column, ...]:
    """Return the columns to sort by. Raises UnwritableColumn if one is missing or not sortable."""
    found = {name.lower(): Column(index, name) for index, (name, _) in enumerate(schema)}
    for name in names:
        column = found.get(name.lower())
        if column is None:
            detail = f"does not exist, so it cannot be sorted by{suggest_name(name, list(found))}"
            raise UnwritableColumn(name, detail)
        if schema[column.index][1].startswith(("map<", "array<")):
            raise UnwritableColumn(name, "has a type without an order; sort by other columns")
    return tuple(found[name.lower()] for name in names)


def _type_fits(kind: str, kinds: Sequence[str]) -> bool:
    """Return True if a type is one of `kinds`. Any collation or length counts as string."""
    if kind.startswith(("string collate", "varchar(", "char(")):
        kind = "string"
    return kind in kinds
