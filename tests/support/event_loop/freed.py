"""Which objects of a class exist. A callback of the loop may refer to one for a few turns more."""

import asyncio
import gc

from tests.support.storage.stored import until


def count_objects(*classes: type) -> int:
    """Return how many objects of these classes the garbage collector knows, after a collection."""
    gc.collect()
    return sum([isinstance(each, classes) for each in gc.get_objects()])


async def freed(*classes: type, but: int = 0) -> None:
    """Wait until no more than `but` objects of these classes exist."""
    await asyncio.sleep(0)
    await until(lambda: count_objects(*classes) <= but)
