"""LIKE patterns: % stands for any text, _ for any one character. Pure.

All ways to match are followed at once, as the bits of one number: bit i says that the text so
far fits the first i items of the pattern. A character of text costs one shift and a few ands,
whatever the pattern; there is nothing to backtrack to. A pattern without `_`, or a short one, is
the parts between its %, each looked for behind the one before.
"""

import re
from collections.abc import Callable
from itertools import pairwise

_ANY_ONE = None  # the item that `_` stands for
#: Longest pattern with a `_` whose parts are searched for by regular expressions, which compare
#: each of its characters with each of the text's at worst, though there is no repeat in them.
MAX_SEARCHED = 64


class InvalidPattern(ValueError):
    """An escape character that escapes nothing. `index` counts from 0 in the pattern."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


def compile_like(pattern: str, escape: str | None = None) -> Callable[[str], bool]:
    """Return whether a whole text fits the pattern; case counts.

    `escape` (one character) takes its meaning from a % or _ or itself after it; before
    anything else InvalidPattern is raised.
    """
    items: list[str | None] = []
    cuts: list[int] = []  # before these items stands a %
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
        return _looks_for([items[a:b] for a, b in pairwise([0, *cuts, len(items)])])
    any_one = sum(2 << i for i, item in enumerate(items) if item is _ANY_ONE)
    accepting: dict[str, int] = {}
    for i, item in enumerate(items):
        if item is not _ANY_ONE:
            accepting[item] = accepting.get(item, any_one) | 2 << i
    whole = 1 << len(items)
    settled = whole & repeats  # once here, whatever follows fits

    def is_like(text: str) -> bool:
        state = 1
        for character in text:
            if state & settled:
                return True
            state = (state << 1 & accepting.get(character, any_one)) | (state & repeats)
            if not state:
                return False
        return bool(state & whole)

    return is_like


def _looks_for(parts: list[list[str | None]]) -> Callable[[str], bool]:
    """Return whether a text consists of `parts`, with anything between each and the next. The
    first place of a part is as good as any later one, since every part has its length."""
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
    """Return what finds a part in a text between two places: where it begins, or -1."""
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
    """Return how many microseconds a pattern takes at most, about, for each byte of a text."""
    if "_" not in pattern:
        return 0.001
    if len(pattern) <= MAX_SEARCHED:
        return 0.002 * len(pattern)
    return 0.5 + len(pattern) / 1000
