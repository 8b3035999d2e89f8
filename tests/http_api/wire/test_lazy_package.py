"""Packages whose `__init__` runs at the first use."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from holdfast.http_api.wire.lazy_package import import_without_init


def make_package(folder: Path, name: str, init: str) -> None:
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text(init)
    (folder / name / "part.py").write_text("VALUE = 1\n")
    (folder / name / "other.py").write_text("VALUE = 2\n")


@pytest.fixture(autouse=True)
def _path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "modules", dict(sys.modules))


def test_a_submodule_is_imported_without_the_init(tmp_path: Path) -> None:
    make_package(tmp_path, "lazy_a", "raise RuntimeError('the init runs')\n")
    import_without_init("lazy_a")
    import lazy_a.part  # type: ignore[import-not-found]
    from lazy_a import part

    assert lazy_a.part is part
    assert part.VALUE == 1
    with pytest.raises(RuntimeError, match="the init runs"):
        _ = lazy_a.anything


def test_the_first_name_of_the_package_runs_the_init_once(tmp_path: Path) -> None:
    init = "import sys\nfrom . import other, part\nsys.lazy_b = getattr(sys, 'lazy_b', 0) + 1\n"
    make_package(tmp_path, "lazy_b", init + "name = 'value'\n")
    import_without_init("lazy_b")
    import lazy_b.part  # type: ignore[import-not-found]

    part = lazy_b.part
    assert not hasattr(sys, "lazy_b")
    try:
        assert lazy_b.name == "value"
        assert (lazy_b.part, lazy_b.other.VALUE) == (part, 2)
        with pytest.raises(AttributeError, match="lazy_b"):
            _ = lazy_b.missing
        assert sys.lazy_b == 1  # type: ignore[attr-defined]
    finally:
        del sys.lazy_b  # type: ignore[attr-defined]


def test_two_threads_wait_for_one_init(tmp_path: Path) -> None:
    init = "import threading\nthreading.lazy_begun.set()\nthreading.lazy_go.wait(10)\nname = 1\n"
    make_package(tmp_path, "lazy_c", init)
    import_without_init("lazy_c")
    import lazy_c  # type: ignore[import-not-found]

    begun, go = threading.Event(), threading.Event()
    threading.lazy_begun, threading.lazy_go = begun, go  # type: ignore[attr-defined]
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(lazy_c.name)) for _ in range(2)]
    try:
        for each in threads:
            each.start()
        assert begun.wait(10)
        go.set()
        for each in threads:
            each.join(10)
    finally:
        del threading.lazy_begun, threading.lazy_go  # type: ignore[attr-defined]
    assert found == [1, 1]


def test_an_imported_package_stays_as_it_is() -> None:
    import json

    before = dict(vars(json))
    import_without_init("json")
    assert sys.modules["json"] is json
    assert vars(json) == before


def test_a_missing_package_is_reported() -> None:
    with pytest.raises(ModuleNotFoundError, match="lazy_missing") as raised:
        import_without_init("lazy_missing")
    assert raised.value.name == "lazy_missing"


def test_a_program_with_a_broker_may_use_all_of_aiohttp() -> None:
    program = (
        "import sys, holdfast.broker\n"
        "assert 'aiohttp.client' not in sys.modules\n"
        "import aiohttp\n"
        "from aiohttp import hdrs, web\n"
        "print(aiohttp.ClientSession.__name__, web.Application.__name__, aiohttp.hdrs is hdrs)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["ClientSession", "Application", "True"]
