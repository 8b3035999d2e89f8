"""LIKE patterns: % stands for any text, _ for any one character. Pure.

All ways to match are followed at once, as the bits of one number: bit i says that the text so
far fits the first i items of the pattern. A character of text costs one shift and a few ands,
whatever the pattern; there is nothing to backtrack to. A pattern without `_` is the texts
between its %, each looked for behind the one before.
"""

from collections.abc import Callable
from itertools import pairwise

_ANY_ONE = None  # the item that `_` stands for


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

    if _ANY_ONE not in items:
        return _looks_for(["".join(map(str, items[a:b])) for a, b in _between(cuts, len(items))])
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


def _between(cuts: list[int], end: int) -> list[tuple[int, int]]:
    borders = [0, *cuts, end]
    return list(pairwise(borders))


def _looks_for(texts: list[str]) -> Callable[[str], bool]:
    """Return whether a text consists of `texts`, with anything between each and the next."""
    if len(texts) == 1:
        return lambda text: text == texts[0]
    first, *inner, last = texts
    inner = list(filter(None, inner))

    def is_like(text: str) -> bool:
        at, end = len(first), len(text) - len(last)
        if at > end or not text.startswith(first) or not text.endswith(last):
            return False
        for part in inner:
            at = text.find(part, at, end) + len(part)
            if at < len(part):
                return False
        return True

    return is_like
