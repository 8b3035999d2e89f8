"""Classes whose pickles carry the package to processes that lack it.

Spark forwards the archives of a session to executors and planning processes, but not to the process
that drives a stream and, over Spark Connect, not to the tasks of a stream. The first object that
such a process unpickles has a class with the metaclass `SelfUnpackingMeta`. After `ship_archive`,
the pickle of such a class contains the archive. A process that lacks the package saves the archive
to a file and imports the package from it.
"""

import copyreg
from abc import ABCMeta
from collections.abc import Callable
from typing import Any

_shipped_archive: bytes | None = None


def ship_archive(archive: bytes | None) -> None:
    """Include this archive in all later pickles of this process; None ends that."""
    global _shipped_archive  # noqa: PLW0603  one package, one process
    _shipped_archive = archive


class SelfUnpackingMeta(ABCMeta):
    """The metaclass of classes that are pickled by name; after `ship_archive`, their pickles also
    contain the package's archive."""


def _reduce_class(cls: type) -> str | tuple[Callable[..., type], tuple[Any, ...]]:
    if _shipped_archive is None:
        return cls.__qualname__
    return _make_class_finder(), (cls.__module__, cls.__qualname__, _shipped_archive)


def _make_class_finder() -> Callable[[str, str, bytes], type]:
    """Return the function that finds a class in the receiving process. The function is nested, so
    that Spark pickles its code, not its name."""

    def find_class(module: str, name: str, archive: bytes) -> type:
        import importlib
        import os
        import sys
        import tempfile

        try:
            importlib.import_module("holdfast")
        except ModuleNotFoundError:
            # Spark's own folder, which Spark removes when the application ends.
            folder = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or None
            file, path = tempfile.mkstemp(".zip", "holdfast-", folder)
            with os.fdopen(file, "wb") as arrived:
                arrived.write(archive)
            sys.path.append(path)
            importlib.invalidate_caches()
        # This process may pickle the class for yet another process.
        importlib.import_module("holdfast.spark.deploy.pickling").ship_archive(archive)
        found: type = getattr(importlib.import_module(module), name)
        return found

    return find_class


copyreg.pickle(SelfUnpackingMeta, _reduce_class)  # type: ignore[arg-type]
