"""docs/compatibility.md says what pyproject.toml and the recorded contract say."""

import re
import tomllib
from pathlib import Path

from tests.support.tree.contract import PUBLIC_MODULES

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "compatibility.md").read_text("utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def cells(first: str) -> list[str]:
    """Return the cells of the row of a table that begins with `first`."""
    (row,) = re.findall(rf"^\| {first} \|.*$", PAGE, re.MULTILINE)
    return [cell.strip() for cell in row.strip("|").split("|")]


def test_the_supported_pythons_are_those_of_the_package() -> None:
    listed = re.findall(r"Python :: (\d\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert cells("Python")[1].split(", ") == listed
    assert PROJECT["requires-python"] == f">={listed[0]}"


def test_the_python_of_continuous_integration_is_named() -> None:
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8")
    used = re.findall(r'python-version: "([\d.]+)"', workflow)
    assert re.findall(r"3\.\d+", cells("Python")[2]) == used


def test_the_supported_spark_is_that_of_the_package() -> None:
    (spark,) = (
        each for each in PROJECT["optional-dependencies"]["spark"] if each.startswith("pyspark")
    )
    assert cells("Spark")[1].startswith(spark.removeprefix("pyspark>=") + " or newer")


def test_every_public_module_is_covered() -> None:
    covered = re.findall(r"`(holdfast[\w.]*)`", "".join(re.findall(r"^\| Python: .*$", PAGE, re.M)))
    assert sorted(covered) == sorted(PUBLIC_MODULES)


def test_every_named_test_exists() -> None:
    named = re.findall(r"`(tests/[\w/.]+)`", PAGE)
    assert len(named) > 5
    assert [each for each in named if not (ROOT / each).exists()] == []
