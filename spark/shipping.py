"""Send the package to processes that do not have it installed.

    holdfast.spark.ship(spark)                    from a session, also over Spark Connect
    python -m holdfast.spark FILE.zip             for `spark-submit --py-files FILE.zip`

The package is sent as an archive that holds only holdfast, which is pure Python. The other packages
that executors import contain compiled code, so they must be installed there: `EXECUTORS_NEED`.

Spark forwards the archives of a session to executors and planning processes, but not to the process
that drives a stream and, over Spark Connect, not to the tasks of a stream. The first object that
such a process unpickles has a class with the metaclass `SelfUnpackingMeta`. After `ship_archive`,
the pickle of such a class contains the archive. A process that lacks the package saves the archive
to a file and imports the package from it.
"""

import copyreg
import os
import zipimport
from abc import ABCMeta
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import holdfast

#: The distributions that a task imports, in addition to pyspark.
EXECUTORS_NEED = ("pyarrow", "numpy", "msgpack", "google-crc32c")

#: All files in an archive have this date, so that the same source gives the same archive.
_DATE = (1980, 1, 1, 0, 0, 0)
_SHIPPED = (".py", ".lark")

_shipped_archive: bytes | None = None


def build_archive() -> bytes:
    """Return the running package as a zip file. The same source gives the same bytes."""
    if (came := find_own_archive()) is not None:
        return came.read_bytes()
    import io  # imported here, because only the driver makes archives
    import zipfile

    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name, source in sorted(_read_package_files()):
            zipped.writestr(zipfile.ZipInfo(name, _DATE), source, zipfile.ZIP_DEFLATED)
    return content.getvalue()


def find_own_archive() -> Path | None:
    """Return the archive from which this process imports the package; None for a folder."""
    loader: object = getattr(holdfast.__spec__, "loader", None)
    return Path(loader.archive) if isinstance(loader, zipimport.zipimporter) else None


def _read_package_files() -> Iterator[tuple[str, bytes]]:
    """Yield (name in the archive, content) of each file of the package."""
    folder = Path(holdfast.__file__).parent
    # In a checkout, the sub-packages are links to folders outside the package.
    for parent, folders, names in os.walk(folder, followlinks=True):
        folders[:] = [each for each in folders if each != "__pycache__"]
        for name in names:
            if name.endswith(_SHIPPED):
                path = Path(parent, name)
                yield f"holdfast/{path.relative_to(folder).as_posix()}", path.read_bytes()


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
        importlib.import_module("holdfast.spark.shipping").ship_archive(archive)
        found: type = getattr(importlib.import_module(module), name)
        return found

    return find_class


copyreg.pickle(SelfUnpackingMeta, _reduce_class)  # type: ignore[arg-type]
