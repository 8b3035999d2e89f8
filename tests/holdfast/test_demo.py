"""The demonstration's output on the terminal; `make demo` runs the whole demonstration."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from holdfast.demo import show
from holdfast.demo.aggregate import make_table


def test_what_is_missing_for_spark_is_said_as_it_has_to_be_typed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    missing = "pyspark is not installed (pip install 'holdfast[spark]')."
    monkeypatch.setattr(show, "missing_for_spark", lambda: missing)
    said = io.StringIO()
    show._Demo(Console(file=said, width=200), tmp_path, None)._show_spark("http://unused")
    assert missing in said.getvalue()


@pytest.mark.parametrize("key", ["[warn]", "[/]", "[/warn]", "plain", None])
def test_keys_are_shown_as_they_are(key: str | None) -> None:
    row = {"key": key, "messages": 1, "first": 0, "last": 0, "average": None}
    said = io.StringIO()
    Console(file=said, width=200).print(make_table([row], "one", is_reading=False))
    assert (key or "") in said.getvalue()
