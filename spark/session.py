"""Making the data source known to a Spark session, and sending it to executors that lack it.

And a session on this machine where there is none.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakSet

import holdfast
from holdfast.spark.errors import JavaMissing
from holdfast.spark.shipping import archive, came_as
from holdfast.spark.travelling import bring

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_JAVA_NEEDED = 17
_JAVA_VERSION = re.compile(r'version "(\d+)')

_registered: "WeakSet[SparkSession]" = WeakSet()

#: For one machine: nothing listens beyond it, and nothing is started that nobody looks at.
_LOCAL_SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.catalogImplementation": "in-memory",
}


def register(spark: "SparkSession", *, anew: bool = False) -> None:
    """Make `spark.read.format("holdfast")` known to the session. Again does nothing.

    The Python of Spark's workers must have holdfast too: start the session with PYSPARK_PYTHON
    set to an interpreter that has it (`local_session` does), or send it with `ship`. Spark notes
    what it was sent by then with what is registered: with `anew` it is registered once more.
    """
    from holdfast.spark.source import HoldfastDataSource  # needs pyspark, this module does not

    if came_as() is not None:
        bring(archive())  # by --py-files, which does not reach the process that drives a stream
    if anew or spark not in _registered:  # Spark would warn of a source that is replaced
        spark.dataSource.register(HoldfastDataSource)
        _registered.add(spark)


def ship(spark: "SparkSession") -> Path:
    """Send the package to all executors of the session, and register the source in it.

    Returns the archive that was sent, a temporary file. Sending the same source again does
    nothing. Raises OSError when there is no room for the archive.
    """
    content = archive()
    # Spark keeps what it was sent under the file's name, and refuses another of the same name.
    name = f"holdfast-{holdfast.__version__}-{hashlib.sha256(content).hexdigest()[:12]}.zip"
    path = Path(tempfile.mkdtemp(prefix="holdfast-ship-"), name)
    path.write_bytes(content)
    spark.addArtifacts(str(path), pyfile=True)
    bring(content)
    register(spark, anew=True)
    return path


def local_session(
    cores: int | str = "*", *, settings: Mapping[str, str] | None = None
) -> "SparkSession":
    """Return a session on this machine, with its workers on this Python and holdfast registered.

    The one that is active, if there is one. Stop it when you are done. Raises JavaMissing.
    """
    require_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(f"local[{cores}]").appName("holdfast")
    for name, value in {**_LOCAL_SETTINGS, **(settings or {})}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark


def require_java() -> Path:
    """Return the Java that Spark will run on. Raises JavaMissing, which names the package."""
    home = os.environ.get("JAVA_HOME")
    java = Path(home, "bin", "java") if home else Path(shutil.which("java") or "java")
    try:
        asked = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        where = f"JAVA_HOME is {home}, where none runs" if home else "none is on the PATH"
        raise JavaMissing(where) from None
    found = _JAVA_VERSION.search(asked.stderr + asked.stdout)
    if found is None or int(found[1]) < _JAVA_NEEDED:
        raise JavaMissing(f"{java} is version {found[1] if found else 'unknown'}")
    return java
