"""How the clients write messages and values as JSON, and the values that they exchange.

A value is a list of its type's name and its content:

    ["null", null]              ["boolean", true]          ["int", "-1"]: all integers as text
    ["float", "3fc00000"]       ["double", "..."]          ["decimal32", "..."]: the bytes
    ["char", "228"]             ["timestamp", "ms"]        ["uuid", "32 digits"]
    ["binary", "00ff"]          ["string", "text"]         ["symbol", "text"]
    ["list", [value, ...]]      ["map", [[key, value], ...]]
    ["array", type, [content, ...]]

A message is an object. All fields but `body` may be missing:

    header                  {"durable", "priority", "ttl", "first_acquirer", "delivery_count"}
    annotations             [[key, value], ...]
    properties              {name: value}
    application_properties  [[key, value], ...]
    body                    ["data", "hex", ...], ["sequence", [value, ...], ...], ["value", value]
    kind                    the kind of a JMS message (qpid-jms only)
"""

import json
from collections.abc import Mapping
from typing import Any

Value = list[Any]

_LONG = "0123456789abcdef" * 20

#: One value or more of every type, by name.
VALUES: Mapping[str, Value] = {
    "null": ["null", None],
    "true": ["boolean", True],
    "false": ["boolean", False],
    "ubyte": ["ubyte", "255"],
    "ushort": ["ushort", "65535"],
    "uint 0": ["uint", "0"],
    "uint small": ["uint", "200"],
    "uint": ["uint", str(2**32 - 1)],
    "ulong 0": ["ulong", "0"],
    "ulong small": ["ulong", "200"],
    "ulong": ["ulong", str(2**64 - 1)],
    "byte": ["byte", "-128"],
    "short": ["short", "-32768"],
    "int small": ["int", "-1"],
    "int": ["int", str(-(2**31))],
    "long small": ["long", "-128"],
    "long": ["long", str(-(2**63))],
    "float": ["float", "3fc00000"],
    "double": ["double", "bfd5555555555555"],
    "decimal32": ["decimal32", "22500001"],
    "decimal64": ["decimal64", "2234000000000001"],
    "decimal128": ["decimal128", "22080000000000000000000000000001"],
    "char": ["char", "228"],
    "timestamp": ["timestamp", "1700000000123"],
    "uuid": ["uuid", "00112233445566778899aabbccddeeff"],
    "binary": ["binary", "00ff10"],
    "binary long": ["binary", _LONG],
    "string empty": ["string", ""],
    "string": ["string", "grüße € 𝄞"],
    "string long": ["string", _LONG],
    "symbol": ["symbol", "a-symbol"],
    "list empty": ["list", []],
    "list": ["list", [["int", "1"], ["string", "two"], ["list", [["boolean", True]]]]],
    "map": ["map", [
        [["string", "one"], ["int", "1"]],
        [["string", "nested"], ["map", [[["string", "two"], ["long", "2"]]]]],
    ]],
    "map of other keys": ["map", [[["int", "7"], ["string", "seven"]]]],
    **{
        f"array of {kind}": ["array", kind, contents]
        for kind, contents in {
            "boolean": [True, False],
            "ushort": ["1", "65535"],
            "uint": ["1", str(2**32 - 1)],
            "ulong": ["1", str(2**64 - 1)],
            "byte": ["1", "-128"],
            "short": ["1", "-32768"],
            "int": ["1", str(2**31 - 1)],
            "long": ["1", str(2**63 - 1)],
            "float": ["3fc00000", "00000000"],
            "double": ["bfd5555555555555", "0000000000000000"],
            "timestamp": ["1700000000123", "0"],
            "uuid": ["00112233445566778899aabbccddeeff", "00" * 16],
            "binary": ["00ff", "10"],
            "string": ["one", "zwei ü"],
            "symbol": ["one", "two"],
        }.items()
    },
}  # fmt: skip

#: The values that JMS's map messages and stream messages can hold.
JMS_VALUES = (
    "true", "byte", "short", "char", "int", "long", "float", "double", "string", "binary",
)  # fmt: skip

#: Types that are not allowed as an application property (part 3.2.5 of the specification).
_COMPOUND = ("list", "map", "array")


def is_simple(value: Value) -> bool:
    """Return whether a value may be an application property."""
    return value[0] not in _COMPOUND


def canonical(value: Any) -> Any:
    """Return a value with the pairs of all maps in one order."""
    if not isinstance(value, list):
        return value
    parts = [canonical(each) for each in value]
    if parts[:1] == ["map"]:
        parts[1].sort(key=json.dumps)
    return parts
