"""Compile the text of an SQL92 filter to a function of one message. Pure.

The grammar is sql92.lark, the functions are in three_valued.py, and docs/filters.md describes the
meaning.

The import of this module makes the parser, which takes tens of milliseconds.

The parser has its own stack and builds the function bottom-up while it reads. So a deeply nested
text cannot overflow Python's stack while it is parsed. A text that is nested more than
MAX_FILTER_DEPTH levels deep is refused, so its evaluation cannot overflow the stack either.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Final

from lark import Lark, Token, Transformer, UnexpectedCharacters, UnexpectedToken, v_args

from holdfast.holdservice.errors import InvalidFilter
from holdfast.holdservice.filter_limits import (
    MAX_FILTER_BYTES,
    MAX_FILTER_DEPTH,
    MAX_FILTER_TERMS,
)
from holdfast.holdservice.like import InvalidPattern, byte_us, compile_like
from holdfast.holdservice.three_valued import (
    Column,
    Evaluate,
    Name,
    Row,
    Value,
    calculate,
    combine,
    compare,
    constant,
    invert,
    is_in,
    negate_number,
    to_number,
    to_truth,
)


@dataclass(frozen=True, slots=True)
class Condition:
    """A parsed filter. `is_match` tests a row. `names` are the names in the filter: a row must
    have the message's values for these names."""

    is_match: Callable[[Row], bool]
    names: frozenset[Name]
    terms: int
    """Number of names and values in the filter."""
    like_byte_us: float
    """Microseconds that all LIKEs of the filter need per byte of text."""


def parse_condition(text: str) -> Condition:
    """Parse a filter.

    Raise InvalidFilter with the position of the error and a sentence that says how to fix it.
    """
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidFilter("syntax", "it is not valid Unicode; send UTF-8", error.start) from None
    if size > MAX_FILTER_BYTES:
        raise InvalidFilter(
            "too-long", f"it has {size} bytes; use at most {MAX_FILTER_BYTES}, or filter by tag"
        )
    parser = _PARSER.parse_interactive(text)
    depth = terms = 0
    try:
        for token in parser.iter_parse():
            depth += _DEPTH_CHANGES.get(token.type, 0)
            terms += token.type in _TERMS
            if depth > MAX_FILTER_DEPTH:
                raise _too_deep(token)
            if terms > MAX_FILTER_TERMS:
                raise InvalidFilter(
                    "too-many-terms",
                    f"it has more than {MAX_FILTER_TERMS} names and values; "
                    "use fewer, or filter by tag",
                    token.start_pos,
                )
        node: _Node = parser.feed_eof()  # type: ignore[no-untyped-call]
    except UnexpectedCharacters as error:
        assert error.pos_in_stream is not None
        raise _unreadable(text, error.pos_in_stream) from None
    except UnexpectedToken as error:
        accepted = parser.accepts()  # type: ignore[no-untyped-call]
        raise _unexpected(text, error.token, accepted) from None
    evaluate = node.evaluate
    return Condition(lambda row: evaluate(row) is True, node.names, terms, node.like_byte_us)


# -- building the function ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Node:
    """A parsed part of the condition, and its function of a row."""

    evaluate: Evaluate
    position: int
    names: frozenset[Name] = frozenset()
    depth: int = 0
    #: Set only if the part is a single name.
    name: Name | None = None
    #: True if the part evaluates to True, False or None; False if it may be any value.
    is_condition: bool = True
    like_byte_us: float = 0.0


@v_args(inline=True)
class _Builder(Transformer[Token, _Node]):
    """One method per grammar rule, called with the parts of the rule when the rule is complete."""

    def start(self, node: _Node) -> _Node:
        return replace(node, evaluate=_condition(node))

    def any_of(self, *nodes: _Node) -> _Node:
        return _combine_nodes(nodes, decided_by=True)

    def all_of(self, *nodes: _Node) -> _Node:
        return _combine_nodes(nodes, decided_by=False)

    def negation(self, word: Token, node: _Node) -> _Node:
        depth = node.depth + 1
        if depth > MAX_FILTER_DEPTH:
            raise _too_deep(word)
        evaluate = invert(_condition(node))
        return replace(node, evaluate=evaluate, depth=depth, name=None, is_condition=True)

    def group(self, parenthesis: Token, node: _Node) -> _Node:
        depth = node.depth + 1
        if depth > MAX_FILTER_DEPTH:
            raise _too_deep(parenthesis)
        return replace(node, depth=depth)

    def comparison(self, left: _Node, sign: Token, right: _Node) -> _Node:
        return _join((left, right), compare(left.evaluate, _SIGNS[sign], right.evaluate))

    def between(self, value: _Node, negate: Token | None, low: _Node, high: _Node) -> _Node:
        is_high_enough = compare(value.evaluate, operator.ge, low.evaluate)
        is_low_enough = compare(value.evaluate, operator.le, high.evaluate)
        evaluate = combine((is_high_enough, is_low_enough), by=False)
        return _join((value, low, high), invert(evaluate) if negate else evaluate)

    def is_in(self, value: _Node, negate: Token | None, word: Token, *literals: _Node) -> _Node:
        evaluate = is_in(_name_of(value, word), [literal.evaluate({}) for literal in literals])
        return _join((value,), invert(evaluate) if negate else evaluate)

    def like(
        self, value: _Node, negate: Token | None, word: Token, pattern: Token, escape: Token | None
    ) -> _Node:
        name = _name_of(value, word)
        if escape is not None and len(_unquote(escape)) != 1:
            raise InvalidFilter("syntax", "write ESCAPE with one character", escape.start_pos)
        try:
            is_like = compile_like(_unquote(pattern), escape and _unquote(escape))
        except InvalidPattern:
            raise InvalidFilter(
                "syntax",
                "only %, _ or itself may follow the escape character; double the escape character",
                pattern.start_pos,
            ) from None

        def evaluate(row: Row) -> bool | None:
            text = row.get(name)
            return None if text is None else is_like(text)

        joined = _join((value,), invert(evaluate) if negate else evaluate)
        return replace(joined, like_byte_us=byte_us(pattern))

    def is_null(self, value: _Node, word: Token, negate: Token | None) -> _Node:
        name = _name_of(value, word)
        evaluate: Evaluate = (lambda row: name in row) if negate else (lambda row: name not in row)
        return _join((value,), evaluate)

    def arithmetic(self, *parts: _Node | Token) -> _Node:
        """Make a sum or a product of numbers; between two numbers is an operator."""
        nodes = tuple(part for part in parts if isinstance(part, _Node))
        signs = [str(part) for part in parts if isinstance(part, Token)]
        for node in nodes:
            _check_number(node)
        evaluate = calculate([node.evaluate for node in nodes], signs)
        return _fold(replace(_join(nodes, evaluate), is_condition=False))

    def sign(self, sign: Token, node: _Node) -> _Node:
        _check_number(node)
        depth = node.depth + 1
        if depth > MAX_FILTER_DEPTH:
            raise _too_deep(sign)
        evaluate = negate_number(node.evaluate, is_negative=sign == "-")
        return _fold(replace(node, evaluate=evaluate, depth=depth, name=None))

    def signed_number(self, sign: Token, word: Token) -> _Node:
        return _constant(to_number(f"{sign}{word}"), word)

    def name(self, word: Token) -> _Node:
        name = _COLUMNS.get(word, str(word))
        if name == _REDELIVERED:
            raise InvalidFilter(
                "syntax",
                f"messages cannot be selected by {name}; write it as `{name}` if a property has "
                "this name",
                word.start_pos,
            )
        return _make_name(name, word)

    def quoted_name(self, word: Token) -> _Node:
        return _make_name(str(word)[1:-1], word)

    def number(self, word: Token) -> _Node:
        return _constant(to_number(word), word)

    def text(self, word: Token) -> _Node:
        return _constant(_unquote(word), word)

    def truth(self, word: Token) -> _Node:
        return _constant(word.type == "TRUE", word)


def _make_name(name: Name, word: Token) -> _Node:
    return _Node(
        lambda row: row.get(name), _position(word), frozenset({name}), name=name, is_condition=False
    )


def _constant(value: Value, word: Token) -> _Node:
    return _Node(constant(value), _position(word), is_condition=False)


def _fold(node: _Node) -> _Node:
    """Evaluate a part without names once, not for each row."""
    return node if node.names else replace(node, evaluate=constant(node.evaluate({})))


def _check_number(node: _Node) -> None:
    if node.is_condition:
        raise InvalidFilter(
            "syntax", "a condition is not a number; calculate with numbers", node.position
        )


def _join(nodes: tuple[_Node, ...], evaluate: Evaluate) -> _Node:
    return _Node(
        evaluate,
        nodes[0].position,
        frozenset().union(*(node.names for node in nodes)),
        max(node.depth for node in nodes),
        like_byte_us=sum(node.like_byte_us for node in nodes),
    )


def _combine_nodes(nodes: tuple[_Node, ...], *, decided_by: bool) -> _Node:
    return _join(nodes, combine(tuple(map(_condition, nodes)), by=decided_by))


def _position(token: Token) -> int:
    assert token.start_pos is not None
    return token.start_pos


def _condition(node: _Node) -> Evaluate:
    """Return the node's function, converted to return True, False or None. A property with the
    text "true" or "false" is a condition too. Raise InvalidFilter for a constant that is neither
    TRUE nor FALSE."""
    evaluate = node.evaluate
    if node.is_condition:
        return evaluate
    if not node.names and not isinstance(evaluate({}), bool):
        raise InvalidFilter(
            "syntax", "a value is not a condition; compare a property with it", node.position
        )
    return lambda row: to_truth(evaluate(row))


def _unquote(token: Token) -> str:
    return str(token)[1:-1].replace("''", "'")


def _name_of(node: _Node, word: Token) -> Name:
    if node.name is None:
        raise InvalidFilter(
            "syntax", f"write the name of a property before {word.upper()}", _position(word)
        )
    return node.name


# -- errors ------------------------------------------------------------------------------------


def _too_deep(token: Token) -> InvalidFilter:
    return InvalidFilter(
        "too-deep",
        f"parentheses, NOT and signs are nested more than {MAX_FILTER_DEPTH} deep; use fewer "
        "levels",
        token.start_pos,
    )


def _unreadable(text: str, position: int) -> InvalidFilter:
    character = text[position]
    fix = _FIXES.get(character, "leave it out, or quote it in '...' as a part of a text")
    return InvalidFilter("syntax", f"{character!r} is not allowed here; {fix}", position)


def _unexpected(text: str, token: Token, accepted: set[str]) -> InvalidFilter:
    is_end = token.type == "$END"
    found = "the filter ends too early" if is_end else f"{str(token)[:64]!r} is not allowed here"
    wanted = [phrase for kind, phrase in _PHRASES.items() if kind in accepted]
    fix = f"write {wanted[0]}" if len(wanted) == 1 else f"write one of: {' | '.join(wanted)}"
    return InvalidFilter("syntax", f"{found}; {fix}", len(text) if is_end else token.start_pos)


_SIGNS: Final = {
    "=": operator.eq,
    "<>": operator.ne,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_COLUMNS: Final = {
    **{column.value: column for column in Column},
    "JMSType": Column.TAG,
    "JMSXGroupID": Column.KEY,
}
#: Whether a message was delivered before depends on the reader, so no filter can use it.
_REDELIVERED: Final = "JMSRedelivered"
_TERMS: Final = frozenset({"NAME", "QUOTED_NAME", "TEXT", "NUMBER", "TRUE", "FALSE"})
_DEPTH_CHANGES: Final = {"LPAR": 1, "RPAR": -1}
_FIXES: Final = {
    "'": "close the text with another ' (and write a ' inside it as '')",
    '"': "write a text as '...' and an unusual property name as `...`",
    "`": "close the name with another `",
}
_PHRASES: Final = {
    "NAME": "a property name",
    "TEXT": "a text in '...'",
    "NUMBER": "a number",
    "SIGN": "+ or -",
    "FACTOR": "* or /",
    "TRUE": "TRUE",
    "FALSE": "FALSE",
    "LPAR": "(",
    "NOT": "NOT",
    "COMPARISON": "a comparison (= <> < <= > >=)",
    "BETWEEN": "BETWEEN",
    "IN": "IN",
    "LIKE": "LIKE",
    "IS": "IS",
    "NULL": "NULL",
    "ESCAPE": "ESCAPE",
    "COMMA": ",",
    "RPAR": ")",
    "AND": "AND",
    "OR": "OR",
    "$END": "nothing more",
}

_PARSER: Final = Lark(
    files("holdfast.holdservice").joinpath("sql92.lark").read_text(encoding="utf-8"),
    parser="lalr",
    lexer="basic",
    maybe_placeholders=True,
    transformer=_Builder(),
)
