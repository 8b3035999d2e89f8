"""Collections that look only at the objects that a test makes."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def only_own_garbage() -> Iterator[None]:
    """Turn automatic collection off. A collection in the block looks only at objects that were
    made in the block.

    Older objects stay frozen afterwards. `gc.unfreeze` would also undo what tests/conftest.py
    froze, and each later collection in this process would look at all imported modules again.
    """
    gc.disable()
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.enable()
