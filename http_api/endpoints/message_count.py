"""Decides whether a JSON body has too many messages, before any message is decoded. Pure.

msgspec checks the length of a list only after it has built the whole list, and meanwhile all other
threads wait (GIL). A body of 16 MiB may have a million messages, of which 100,000 are allowed.
"""

import re

#: A string, or a bracket. A string without a closing quote extends to the end. The quantifiers are
#: possessive: they never backtrack, so no byte is examined twice.
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[{}\[\]]', re.DOTALL)
_OPENING, _CLOSING = b"{[", b"}]"
#: The depth of a message in brackets: in {"messages": [{, the message begins with the third one.
_MESSAGE_DEPTH = 3


def lists_more_than(limit: int, body: bytes) -> bool:
    """Return whether a publish request in JSON has more than `limit` messages.

    For invalid JSON, the result may be True or False; decoding then reports the error.
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
