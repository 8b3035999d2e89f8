"""The columns of messages in Holdfast's own schema. Pure.

The names are those of the HTTP API. Spark's source and the tables of the clients have the same
columns with the same types.
"""

from collections.abc import Mapping

#: Column -> its type in Spark's DDL, in order. `ARROW_TYPES` has the Arrow type for each.
HOLDFAST_COLUMNS: Mapping[str, str] = {
    "topic": "string",
    "queue": "int",
    "offset": "bigint",
    "message_id": "string",
    "key": "string",
    "tag": "string",
    "priority": "int",
    "properties": "map<string,string>",
    "body": "binary",
    "born_timestamp": "timestamp",
    "store_timestamp": "timestamp",
}
