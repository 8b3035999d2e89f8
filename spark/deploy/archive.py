"""Pack the package as one archive, for clusters whose executors do not have it installed.

    holdfast.spark.ship(spark)                    from a session, also over Spark Connect
    python -m holdfast.spark FILE.zip             for `spark-submit --py-files FILE.zip`

The archive holds only holdfast, which is pure Python. The other packages that executors import
contain compiled code, so they must be installed on the executors: `EXECUTORS_NEED`.
"""

import io
import os
import zipfile
import zipimport
from collections.abc import Iterator
from pathlib import Path

import holdfast

#: The distributions that a task imports, in addition to pyspark.
EXECUTORS_NEED = ("pyarrow", "numpy", "msgpack", "google-crc32c")

#: All files in an archive have this date, so that the same source gives the same archive.
_DATE = (1980, 1, 1, 0, 0, 0)
_SHIPPED = (".py", ".lark")


def build_archive() -> bytes:
    """Return the running package as a zip file. The same source gives the same bytes."""
    if (came := find_own_archive()) is not None:
        return came.read_bytes()
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name, source in sorted(_read_package_files()):
            zipped.writestr(zipfile.ZipInfo(name, _DATE), source, zipfile.ZIP_DEFLATED)
    return content.getvalue()


def find_own_archive() -> Path | None:
    """Return the archive from which this process imports the package. Return None if the package is
    imported from a folder."""
    loader: object = getattr(holdfast.__spec__, "loader", None)
    return Path(loader.archive) if isinstance(loader, zipimport.zipimporter) else None


def _read_package_files() -> Iterator[tuple[str, bytes]]:
    """Yield (name in the archive, content) of each file of the package."""
    folder = Path(holdfast.__file__).parent
    # In a checkout, the sub-packages are links to folders outside the package. An installed package
    # has no links.
    for parent, folders, names in os.walk(folder, followlinks=True):
        folders[:] = [each for each in folders if each != "__pycache__"]
        for name in names:
            if name.endswith(_SHIPPED):
                path = Path(parent, name)
                yield f"holdfast/{path.relative_to(folder).as_posix()}", path.read_bytes()
