"""The package as one archive, for clusters whose executors do not have it installed.

    holdfast.spark.ship(spark)                    from a session, also over Spark Connect
    python -m holdfast.spark FILE.zip             for `spark-submit --py-files FILE.zip`

The archive holds holdfast alone, in plain Python. What executors import beside it is compiled code
and must be installed where they run: `EXECUTORS_NEED`.
"""

import io
import os
import zipfile
import zipimport
from collections.abc import Iterator
from pathlib import Path

import holdfast

#: The distributions that a task imports, beside pyspark itself.
EXECUTORS_NEED = ("pyarrow", "numpy", "msgpack", "google-crc32c")

#: Every archive's files are of this date, so that the same source is the same archive.
_DATE = (1980, 1, 1, 0, 0, 0)
_SHIPPED = (".py", ".lark")


def archive() -> bytes:
    """Return the package that is running as a zip file, the same bytes for the same source."""
    if (came := came_as()) is not None:
        return came.read_bytes()
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name, source in sorted(_files()):
            zipped.writestr(zipfile.ZipInfo(name, _DATE), source, zipfile.ZIP_DEFLATED)
    return content.getvalue()


def came_as() -> Path | None:
    """Return the archive that this process runs the package from, None when it is files."""
    loader: object = getattr(holdfast.__spec__, "loader", None)
    return Path(loader.archive) if isinstance(loader, zipimport.zipimporter) else None


def _files() -> Iterator[tuple[str, bytes]]:
    """Yield (name in the archive, content) of each file of the package."""
    folder = Path(holdfast.__file__).parent
    # In a checkout the parts are links to folders beside it; an installed package has none.
    for parent, folders, names in os.walk(folder, followlinks=True):
        folders[:] = [each for each in folders if each != "__pycache__"]
        for name in names:
            if name.endswith(_SHIPPED):
                path = Path(parent, name)
                yield f"holdfast/{path.relative_to(folder).as_posix()}", path.read_bytes()
