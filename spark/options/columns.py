"""The columns that each schema has, and which of them the options choose. Pure.

The `holdfast` names are those of the HTTP API. The `kafka` names and types are those of Spark's
Kafka connector, so that a Kafka job needs only a new format and address. Spark cannot leave out
unused columns of a Python source, so all columns that are chosen here are sent to the JVM.
"""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from holdfast.arrow.columns import HOLDFAST_COLUMNS
from holdfast.spark.errors import InvalidOption

#: Column -> its type in Spark's DDL, in the order of the default columns.
KAFKA_COLUMNS: Mapping[str, str] = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
}
SCHEMAS: Mapping[str, Mapping[str, str]] = {"holdfast": HOLDFAST_COLUMNS, "kafka": KAFKA_COLUMNS}

_BODY = {"holdfast": "body", "kafka": "value"}
_ON_REQUEST = {"message_id", "priority"}


def choose_columns(
    schema: str,
    asked: str | None,
    *,
    several_topics: bool,
    include_body: bool,
    include_headers: bool,
) -> dict[str, str]:
    """Return the chosen columns and their types, in order. Raises InvalidOption for an unknown or
    repeated name, or for the name of the body column if includeBody is false."""
    known = SCHEMAS[schema]
    if asked is not None:
        names = _parse_names(asked, known)
        if not include_body and _BODY[schema] in names:
            raise InvalidOption("includeBody", f"is false, but columns names {_BODY[schema]!r}")
        return {name: known[name] for name in names}
    left_out = set(_ON_REQUEST)
    if not several_topics and schema == "holdfast":
        left_out.add("topic")
    if not include_body:
        left_out.add(_BODY[schema])
    if not include_headers:
        left_out.add("headers")
    return {name: ddl for name, ddl in known.items() if name not in left_out}


def _parse_names(asked: str, known: Mapping[str, str]) -> list[str]:
    names = [name.strip() for name in asked.split(",")]
    for name in names:
        if name not in known:
            raise InvalidOption("columns", f"{name!r} is unknown{suggest_name(name, known)}")
    if len(set(names)) < len(names):
        raise InvalidOption("columns", f"a column is named twice in {asked!r}")
    return names


def suggest_name(word: str, known: Mapping[str, object] | Sequence[str]) -> str:
    """Return "; did you mean ...?" with the known word that is most similar to `word`. If none is
    similar, return a list of all known words instead."""
    by_fold = {name.lower(): name for name in known}
    found = get_close_matches(word.lower(), by_fold, n=1)
    if found:
        return f"; did you mean {by_fold[found[0]]!r}?"
    return f"; known are {', '.join(known)}"


def format_ddl(columns: Mapping[str, str]) -> str:
    """Return the columns as a Spark DDL schema."""
    return ", ".join(f"`{name}` {ddl}" for name, ddl in columns.items())
