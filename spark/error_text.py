"""Extract this package's error message from the text of a Spark error.

Spark reports the error of a task as text: a Python traceback and, for a stream, also the query's
plan.
"""

import re

#: The last line of a traceback, for an error of any Holdfast module.
_SENTENCE = re.compile(r"^holdfast(?:\.\w+)*\.[A-Z]\w*: (.+)$", re.MULTILINE)


def reason(error: BaseException) -> str | None:
    """Return the message of the Holdfast error that caused Spark's `error`, or None."""
    found: list[str] = _SENTENCE.findall(str(error))
    return found[-1] if found else None
