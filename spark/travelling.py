"""Classes that bring their package along to processes that lack it.

Spark gives what it was sent to executors and to the processes that plan, but not to the one that
drives a stream, nor, over Spark Connect, to a stream's tasks. What these unpickle first of all is a
class of this kind. Once `bring` was called, it is pickled with the package's archive, and unpacks
that where the package is missing.
"""

import copyreg
from abc import ABCMeta
from collections.abc import Callable
from typing import Any

_brought: bytes | None = None


def bring(archive: bytes) -> None:
    """From now on, in this process, let what is pickled bring this archive."""
    global _brought  # noqa: PLW0603  one package, one process
    _brought = archive


class Travelling(ABCMeta):
    """The metaclass of classes that are pickled by name, with their package beside it."""


def _reduce(cls: type) -> str | tuple[Callable[..., type], tuple[Any, ...]]:
    if _brought is None:
        return cls.__qualname__
    return _arrival(), (cls.__module__, cls.__qualname__, _brought)


def _arrival() -> Callable[[str, str, bytes], type]:
    """Return what finds a class where it arrives. Nested, so that it is pickled by its code."""

    def arrive(module: str, name: str, archive: bytes) -> type:
        import importlib
        import os
        import sys
        import tempfile

        try:
            importlib.import_module("holdfast")
        except ModuleNotFoundError:
            # Spark's own folder, which it clears away with the application.
            folder = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or None
            file, path = tempfile.mkstemp(".zip", "holdfast-", folder)
            with os.fdopen(file, "wb") as arrived:
                arrived.write(archive)
            sys.path.append(path)
            importlib.invalidate_caches()
        # It may be sent on from here.
        importlib.import_module("holdfast.spark.travelling").bring(archive)
        found: type = getattr(importlib.import_module(module), name)
        return found

    return arrive


copyreg.pickle(Travelling, _reduce)  # type: ignore[arg-type]
