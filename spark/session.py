"""Register the data source with a session, send it to executors, start a local session."""

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
from holdfast.spark.shipping import build_archive, find_own_archive, ship_archive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_JAVA_NEEDED = 17
_JAVA_VERSION = re.compile(r'version "(\d+)')

_registered: "WeakSet[SparkSession]" = WeakSet()

#: Settings for one machine: Spark listens only on the loopback address, and starts no web UI.
LOCAL_SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.catalogImplementation": "in-memory",
}


def register(spark: "SparkSession", *, anew: bool = False) -> None:
    """Register `spark.read.format("holdfast")` in the session. Registering again does nothing.

    Spark's Python workers need holdfast, too. Either set PYSPARK_PYTHON to an interpreter that has
    holdfast before the session starts (`local_session` does this), or send the package with `ship`.
    A registration uses only archives that were sent to Spark earlier. After you send another
    archive, register again with `anew=True`.
    """
    from holdfast.spark.source import HoldfastDataSource  # imported here because it needs pyspark

    if find_own_archive() is not None:
        ship_archive(build_archive())  # --py-files does not reach the process that drives a stream
    if anew or spark not in _registered:  # Spark logs a warning when a source is replaced
        spark.dataSource.register(HoldfastDataSource)
        _registered.add(spark)


def ship(spark: "SparkSession") -> Path:
    """Send the package to all executors of the session, and register the source in it. Return the
    archive that was sent, a temporary file. Sending the same source again does nothing. Raises
    OSError if there is no room for the archive."""
    content = build_archive()
    # Spark stores an archive under its file name, and refuses different content with the same name.
    name = f"holdfast-{holdfast.__version__}-{hashlib.sha256(content).hexdigest()[:12]}.zip"
    path = Path(tempfile.mkdtemp(prefix="holdfast-ship-"), name)
    path.write_bytes(content)
    spark.addArtifacts(str(path), pyfile=True)
    ship_archive(content)
    register(spark, anew=True)
    return path


def local_session(
    cores: int | str = "*", *, settings: Mapping[str, str] | None = None
) -> "SparkSession":
    """Return a session on this machine, with the data source registered. Its workers run this
    Python interpreter. If a session is already active, that session is returned. The caller must
    stop the session. Raises JavaMissing."""
    require_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(f"local[{cores}]").appName("holdfast")
    for name, value in {**LOCAL_SETTINGS, **(settings or {})}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark


def require_java() -> Path:
    """Return the Java executable that Spark will run. Raises JavaMissing."""
    home = os.environ.get("JAVA_HOME")
    java = Path(home, "bin", "java") if home else Path(shutil.which("java") or "java")
    try:
        answer = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        reason = f"JAVA_HOME is {home}, where Java does not run" if home else "PATH has no Java"
        raise JavaMissing(reason) from None
    found = _JAVA_VERSION.search(answer.stderr + answer.stdout)
    if found is None or int(found[1]) < _JAVA_NEEDED:
        raise JavaMissing(f"{java} is version {found[1] if found else 'unknown'}")
    return java
