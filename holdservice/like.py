"""LIKE patterns: % matches any text, _ matches any single character. Pure.

A long pattern with `_` is matched by a bit-parallel automaton: bit i of the state means that the
text read until now matches the first i items of the pattern. Each character of the text costs one
shift and a few ANDs, and there is no backtracking. A pattern without `_`, or a short pattern, is
split at each %, and each part is searched after the part before it.
"""

import re
from collections.abc import Callable
from itertools import pairwise

_ANY_ONE = None  # the item for `_`
#: Patterns with `_` and at most this many characters are searched by regular expressions. These
#: contain no repeats, but in the worst case they compare each character of the pattern with each
#: character of the text.
MAX_SEARCHED = 64


class InvalidPattern(ValueError):
    """The character after an escape character cannot be escaped. `index` is the position of the
    escape character in the pattern, from 0."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


def compile_like(pattern: str, escape: str | None = None) -> Callable[[str], bool]:
    """Return a function that reports whether a whole text matches the pattern. Case-sensitive.

    `escape` is one character. It makes a following %, _ or `escape` literal. Raise InvalidPattern
    if any other character follows it.
    """
    items: list[str | None] = []
    cuts: list[int] = []  # indexes of the items that follow a %
    repeats = 0  # bit i: any text may follow the first i items
    characters = iter(enumerate(pattern))
    for index, character in characters:
        if character == escape:
            _, character = next(characters, (0, ""))
            if character not in {"%", "_", escape}:
                raise InvalidPattern(index)
            items.append(character)
        elif character == "%":
            repeats |= 1 << len(items)
            cuts.append(len(items))
        else:
            items.append(_ANY_ONE if character == "_" else character)

    if _ANY_ONE not in items or len(items) <= MAX_SEARCHED:
        return _search_function([items[a:b] for a, b in pairwise([0, *cuts, len(items)])])
    any_one = sum(2 << i for i, item in enumerate(items) if item is _ANY_ONE)
    accepting: dict[str, int] = {}
    for i, item in enumerate(items):
        if item is not _ANY_ONE:
            accepting[item] = accepting.get(item, any_one) | 2 << i
    whole = 1 << len(items)
    final = whole & repeats  # in this state any remaining text matches

    def is_like(text: str) -> bool:
        state = 1
        for character in text:
            if state & final:
                return True
            state = (state << 1 & accepting.get(character, any_one)) | (state & repeats)
            if not state:
                return False
        return bool(state & whole)

    return is_like


def _search_function(parts: list[list[str | None]]) -> Callable[[str], bool]:
    """Return a function that reports whether a text consists of `parts` with any text between
    them. Taking the first place of each part is enough, because every part has a fixed length."""
    first, last = _finder(parts[0]), _finder(parts[-1])
    first_size, last_size = len(parts[0]), len(parts[-1])
    if len(parts) == 1:
        return lambda text: len(text) == first_size and first(text, 0, first_size) == 0
    inner = [(_finder(part), len(part)) for part in parts[1:-1] if part]

    def is_like(text: str) -> bool:
        at, end = first_size, len(text) - last_size
        if at > end or first(text, 0, at) != 0 or last(text, end, len(text)) != end:
            return False
        for find, size in inner:
            found = find(text, at, end)
            if found < 0:
                return False
            at = found + size
        return True

    return is_like


def _finder(part: list[str | None]) -> Callable[[str, int, int], int]:
    """Return a function (text, start, end) that returns the first place of the part between
    `start` and `end`, or -1."""
    if _ANY_ONE not in part:
        literal = "".join(map(str, part))
        return lambda text, at, end: text.find(literal, at, end)
    signs = ["." if item is None else re.escape(item) for item in part]
    search = re.compile("".join(signs), re.DOTALL).search

    def find(text: str, at: int, end: int) -> int:
        found = search(text, at, end)
        return -1 if found is None else found.start()

    return find


def byte_us(pattern: str) -> float:
    """Return about how many microseconds a pattern needs per byte of text in the worst case."""
    if "_" not in pattern:
        return 0.001
    if len(pattern) <= MAX_SEARCHED:
        return 0.002 * len(pattern)
    return 0.5 + len(pattern) / 1000
