"""How many messages a JSON body lists, at least: told before any of them is made. Pure.

msgspec checks a list's length when it has made the list, and keeps the interpreter to itself
until then; a body of 16 MiB may list a million messages, where a hundred thousand are allowed.
"""

import re

#: A string as a whole (or all that follows an opening quote that nothing closes), or a bracket.
#: What a token took is never given back, so that no text is looked at twice.
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[{}\[\]]', re.DOTALL)
_OPENING, _CLOSING = b"{[", b"}]"
#: {"messages": [ { is the third bracket.
_MESSAGE_DEPTH = 3


def lists_more_than(limit: int, body: bytes) -> bool:
    """Return whether more than `limit` objects lie where a publish has its messages.

    False for what is no JSON at all is as good as True: decoding it will say so.
    """
    if body.count(b"{") <= limit + 1:
        return False
    depth = count = 0
    for token in _TOKEN.finditer(body):
        sign = body[token.start()]
        if sign in _OPENING:
            depth += 1
            if depth == _MESSAGE_DEPTH and sign == _OPENING[0]:
                count += 1
                if count > limit:
                    return True
        elif sign in _CLOSING:
            depth -= 1
    return False
