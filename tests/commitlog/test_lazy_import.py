"""A module is imported when an attribute of its name is first read."""

import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from holdfast.commitlog.lazy_import import import_at_first_use


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the name of a module that this process has not imported."""
    name = f"lazily_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text("VALUE = 7\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def test_a_module_is_imported_at_the_first_read(module: str) -> None:
    names: dict[str, Any] = {}
    import_at_first_use(names, late=module)
    assert module not in sys.modules
    assert names["late"].VALUE == 7
    assert names["late"] is sys.modules[module]


def test_a_name_that_was_copied_before_still_works(module: str) -> None:
    names: dict[str, Any] = {}
    import_at_first_use(names, late=module)
    copied = names["late"]
    assert copied.VALUE == copied.VALUE == names["late"].VALUE


def test_an_attribute_that_the_module_lacks_is_an_error(module: str) -> None:
    names: dict[str, Any] = {}
    import_at_first_use(names, late=module)
    with pytest.raises(AttributeError, match=f"module '{module}' has no attribute 'OTHER'"):
        print(names["late"].OTHER)


def test_a_failed_import_is_raised_at_each_read() -> None:
    names: dict[str, Any] = {}
    import_at_first_use(names, late="no_such_module_anywhere")
    for _ in range(2):
        with pytest.raises(ModuleNotFoundError, match="no_such_module_anywhere"):
            print(names["late"].VALUE)


def test_threads_that_read_at_once_get_the_same_module(module: str) -> None:
    names: dict[str, Any] = {}
    import_at_first_use(names, late=module)
    start = threading.Barrier(8)
    found: list[int] = []

    def read() -> None:
        start.wait()
        found.append(names["late"].VALUE)

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [7] * 8
