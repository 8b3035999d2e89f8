"""What went wrong, out of all that Spark says around it.

Spark passes an error on as text: between a traceback of Python's and, from a stream, its plan.
"""

import re

#: An error as Python ends a traceback with it: of a module of Holdfast's, whichever.
_SENTENCE = re.compile(r"^holdfast(?:\.\w+)*\.[A-Z]\w*: (.+)$", re.MULTILINE)


def reason(error: BaseException) -> str | None:
    """Return the sentence of the error that Spark raised `error` for; None if it is not ours."""
    found: list[str] = _SENTENCE.findall(str(error))
    return found[-1] if found else None
