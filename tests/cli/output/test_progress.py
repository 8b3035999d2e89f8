import sys

import pytest

from holdfast.cli.output.progress import progress
from tests.cli.screen import Terminal


@pytest.mark.parametrize(("in_bytes", "shown"), [(True, "2.0/3.0 kB"), (False, "2000/3000")])
def test_progress_is_in_bytes_or_in_things(
    in_bytes: bool, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = Terminal(is_terminal=True)
    monkeypatch.setattr(sys, "stderr", errors)
    monkeypatch.setenv("COLUMNS", "100")
    with progress("messages", in_bytes=in_bytes) as show:
        show(2000, 3000, 7)
    assert shown in errors.text()
    assert "7 messages" in errors.text()


def test_no_progress_is_shown_if_standard_error_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    errors = Terminal(is_terminal=False)
    monkeypatch.setattr(sys, "stderr", errors)
    with progress("messages") as show:
        show(2, 3, 1)
    assert errors.text() == ""
