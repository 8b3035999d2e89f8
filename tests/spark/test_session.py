import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from holdfast.spark.errors import JavaMissing
from holdfast.spark.session import register, require_java


def fake_java(folder: Path, says: str) -> Path:
    """Put a program `java` into folder/bin that prints its version as Java does."""
    (folder / "bin").mkdir()
    java = folder / "bin" / "java"
    java.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    java.chmod(0o755)
    return java


@pytest.mark.parametrize("says", ['openjdk version "17.0.15" 2025-04-15', 'java version "21"'])
def test_java_17_or_newer_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str
) -> None:
    java = fake_java(tmp_path, says)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert require_java() == java
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    assert require_java() == java


@pytest.mark.parametrize("says", ['openjdk version "11.0.2" 2019', 'java version "1.8.0"', "what?"])
def test_an_older_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str) -> None:
    fake_java(tmp_path, says)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissing, match="openjdk-17-jre-headless"):
        require_java()


def test_without_java_the_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaMissing, match=r"PATH has no Java.*openjdk-17-jre-headless"):
        require_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissing, match="JAVA_HOME is"):
        require_java()


def test_the_package_is_imported_without_pyspark(tmp_path: Path) -> None:
    (tmp_path / "pyspark.py").write_text("raise ImportError('no pyspark here')")
    (tmp_path / "pyarrow.py").write_text("raise ImportError('no pyarrow here')")
    program = "import holdfast.spark as s; [getattr(s, name) for name in s.__all__]"
    subprocess.run([sys.executable, "-c", program], env={"PYTHONPATH": str(tmp_path)}, check=True)


def test_the_source_is_registered_once_a_session() -> None:
    pytest.importorskip("pyspark")

    class Session:
        def __init__(self) -> None:
            self.registered: list[type] = []
            self.dataSource = SimpleNamespace(register=self.registered.append)

    first, second = Session(), Session()
    for session in (first, first, second):
        register(session)  # type: ignore[arg-type]
    assert len(first.registered) == len(second.registered) == 1
