"""What conditions are made of: functions of a message's row, in SQL's three values. Pure.

True, False and None: unknown, which is what is absent or cannot be compared. A property is a
text; beside a number or a truth value it is read as one, where it can be.
"""

import re
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Final


class Column(Enum):
    """What a filter may name of a message beside its properties."""

    TAG = "TAGS"
    KEY = "KEYS"


Name = str | Column
Row = Mapping[Name, str]
"""What one message has of the names that a condition uses; what is absent is left out."""
Value = str | int | float | bool | None
Evaluate = Callable[[Row], Value]

_NUMBER: Final = re.compile(r"[+-]?[0-9]*(?P<fraction>\.[0-9]*)?(?P<exponent>[eE][+-]?[0-9]+)?")
#: Longest text that is read as a number; int() takes no more digits either.
MAX_NUMBER_CHARACTERS: Final = 4300
_TRUTHS: Final = {"true": True, "false": False}


def truth(value: Value) -> bool | None:
    """Return the truth value that a value is or, as a text, names in any case; else None."""
    if isinstance(value, str):
        return _TRUTHS.get(value.lower())
    return value if isinstance(value, bool) else None


def decided(conditions: tuple[Evaluate, ...], *, by: bool) -> Evaluate:
    """Return OR (decided by the first True) or AND (by the first False)."""

    def evaluate(row: Row) -> bool | None:
        outcome: bool | None = not by
        for condition in conditions:
            value = condition(row)
            if value is by:
                return by
            if value is None:
                outcome = None
        return outcome

    return evaluate


def negated(condition: Evaluate) -> Evaluate:
    """Return NOT."""

    def evaluate(row: Row) -> bool | None:
        value = condition(row)
        return None if value is None else not value

    return evaluate


def compared(left: Evaluate, test: Callable[[Any, Any], bool], right: Evaluate) -> Evaluate:
    """Return a comparison of two values, of which one may have to be read as the other's kind."""

    def evaluate(row: Row) -> bool | None:
        a, b = left(row), right(row)
        if type(a) is not type(b):
            a, b = _converted(a, b), _converted(b, a)
        return None if a is None or b is None else test(a, b)

    return evaluate


def _converted(value: Value, other: Value) -> Value:
    """Return `value` as what `other` is; None where that cannot be. Only a text is converted."""
    if isinstance(value, str):
        return truth(value) if isinstance(other, bool) else number(value)
    if isinstance(value, bool) and not isinstance(other, str):
        return None
    return value


def listed(name: Name, literals: list[Value]) -> Evaluate:
    """Return IN: equal to any of the literals, as `=` would have it. However many they are, a
    property is read once as each kind that is among them.
    """
    texts = frozenset(literal for literal in literals if isinstance(literal, str))
    truths = frozenset(literal for literal in literals if isinstance(literal, bool))
    numbers = frozenset(literal for literal in literals if type(literal) in {int, float})
    kinds: list[tuple[Callable[[str], Value], frozenset[Value]]] = []
    if numbers:
        kinds.append((number, numbers))
    if truths:
        kinds.append((truth, truths))

    def evaluate(row: Row) -> bool | None:
        text = row.get(name)
        if text is None or text in texts:
            return None if text is None else True
        outcome: bool | None = False
        for read, members in kinds:
            value = read(text)
            if value is None:
                outcome = None
            elif value in members:
                return True
        return outcome

    return evaluate


def always(value: Value) -> Evaluate:
    """Return a literal."""
    return lambda row: value


def number(text: str) -> int | float | None:
    """Return the number that a text is, exact where it is whole; None when it is none."""
    kind = _NUMBER.fullmatch(text) if len(text) <= MAX_NUMBER_CHARACTERS else None
    if kind is None:
        return None
    try:
        return float(text) if kind["fraction"] or kind["exponent"] else int(text)
    except ValueError:  # no digits, or more than int() takes
        return None
