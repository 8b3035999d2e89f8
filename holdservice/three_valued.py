"""The parts of conditions: functions of a message's row with SQL's three truth values. Pure.

The values are True, False and None. None means unknown: a property is absent or cannot be
compared. A property is a text. If it is compared with a number or a truth value, the text is
converted to that type if possible.
"""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from math import isfinite
from typing import Any, Final


class Column(Enum):
    """The fields of a message that a filter may use in addition to its properties."""

    TAG = "TAGS"
    KEY = "KEYS"
    BORN = "JMSTimestamp"
    """When the message was created, in milliseconds."""
    PRODUCER = "$producer"
    """The producer id, if the message was published with one."""
    # The others are read from envelopes: see envelope_columns.py.
    MESSAGE_ID = "JMSMessageID"
    CORRELATION_ID = "JMSCorrelationID"
    PRIORITY = "JMSPriority"
    DELIVERY_MODE = "JMSDeliveryMode"
    PUBLISHER = "$publisher"


Name = str | Column
Row = Mapping[Name, str]
"""The values of one message for the names in a condition. Absent values have no entry."""
Value = str | int | float | bool | None
Evaluate = Callable[[Row], Value]

_NUMBER: Final = re.compile(r"[+-]?[0-9]*(?P<fraction>\.[0-9]*)?(?P<exponent>[eE][+-]?[0-9]+)?")
#: Longest text that is converted to a number; int() accepts no more digits either.
MAX_NUMBER_CHARACTERS: Final = 4300
_TRUTHS: Final = {"true": True, "false": False}


def to_truth(value: Value) -> bool | None:
    """Return a truth value unchanged, and convert the texts "true" and "false" (in any case).
    Return None for any other value."""
    if isinstance(value, str):
        return _TRUTHS.get(value.lower())
    return value if isinstance(value, bool) else None


def combine(conditions: tuple[Evaluate, ...], *, by: bool) -> Evaluate:
    """Return the OR of the conditions with `by=True`, their AND with `by=False`. Evaluation stops
    at the first condition that equals `by`."""

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


def invert(condition: Evaluate) -> Evaluate:
    """Return the NOT of a condition; the NOT of None is None."""

    def evaluate(row: Row) -> bool | None:
        value = condition(row)
        return None if value is None else not value

    return evaluate


def compare(left: Evaluate, test: Callable[[Any, Any], bool], right: Evaluate) -> Evaluate:
    """Return a comparison of two values. If their types differ, a text is converted to the type of
    the other value. The result is None if a value is unknown or cannot be converted."""

    def evaluate(row: Row) -> bool | None:
        a, b = left(row), right(row)
        if type(a) is not type(b):
            a, b = _convert(a, b), _convert(b, a)
        return None if a is None or b is None else test(a, b)

    return evaluate


def _convert(value: Value, other: Value) -> Value:
    """Return `value` converted to the type of `other`, None if that is impossible. Only texts are
    converted."""
    if isinstance(value, str):
        return to_truth(value) if isinstance(other, bool) else to_number(value)
    if isinstance(value, bool) and not isinstance(other, str):
        return None
    return value


def is_in(name: Name, literals: list[Value]) -> Evaluate:
    """Return an IN condition: true if `=` is true for any of the literals. Each evaluation converts
    the property at most once per type, however many literals there are.
    """
    texts = frozenset(literal for literal in literals if isinstance(literal, str))
    truths = frozenset(literal for literal in literals if isinstance(literal, bool))
    numbers = frozenset(literal for literal in literals if type(literal) in {int, float})
    kinds: list[tuple[Callable[[str], Value], frozenset[Value]]] = []
    if numbers:
        kinds.append((to_number, numbers))
    if truths:
        kinds.append((to_truth, truths))

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


def calculate(operands: Sequence[Evaluate], operators: Sequence[str]) -> Evaluate:
    """Return a calculation with numbers, from the left to the right. The operators between the
    operands are either + and -, or * and /. The result is None if an operand is not a number, or if
    a number is divided by 0."""
    first, *others = operands
    steps = [(_OPERATORS[sign], each) for sign, each in zip(operators, others, strict=True)]

    def evaluate(row: Row) -> int | float | None:
        result = _operand(first(row))
        for operate, other in steps:
            number = _operand(other(row))
            if result is None or number is None:
                return None
            try:
                result = _operand(operate(result, number))
            except (OverflowError, ZeroDivisionError):
                return None
        return result

    return evaluate


def negate_number(value: Evaluate, *, is_negative: bool) -> Evaluate:
    """Return a number with a sign before it; None if the value is not a number."""

    def evaluate(row: Row) -> int | float | None:
        number = _operand(value(row))
        return None if number is None else -number if is_negative else number

    return evaluate


def _operand(value: Value) -> int | float | None:
    """Return a value as a number to calculate with. An integer of more than 64 bits becomes a
    float, so that the time for a calculation is limited."""
    if isinstance(value, str):
        value = to_number(value)
    if value is None or isinstance(value, bool | str):
        return None
    if isinstance(value, float):
        return value if isfinite(value) else None
    if not -_LIMIT <= value < _LIMIT:
        try:
            return float(value)
        except OverflowError:
            return None
    return value


def _divide(dividend: int | float, divisor: int | float) -> int | float:
    """Divide as JMS does: the quotient of two integers is an integer, rounded towards 0."""
    if isinstance(dividend, int) and isinstance(divisor, int):
        quotient = abs(dividend) // abs(divisor)
        return quotient if (dividend < 0) == (divisor < 0) else -quotient
    return dividend / divisor


#: One more than the largest integer of 64 bits.
_LIMIT: Final = 2**63
_OPERATORS: Final[Mapping[str, Callable[[Any, Any], int | float]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _divide,
}


def constant(value: Value) -> Evaluate:
    """Return a function that returns `value` for every row."""
    return lambda row: value


def to_number(text: str) -> int | float | None:
    """Return the number in a text, None if it is not a number. Integers are exact."""
    kind = _NUMBER.fullmatch(text) if len(text) <= MAX_NUMBER_CHARACTERS else None
    if kind is None:
        return None
    try:
        return float(text) if kind["fraction"] or kind["exponent"] else int(text)
    except ValueError:  # no digits, or more than int() takes
        return None
