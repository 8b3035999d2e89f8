"""One shared broker, its OpenAPI document, and a check that skips have toolchains.py's reasons."""

from collections.abc import Generator, Iterator
from urllib.request import urlopen

import pytest

from holdfast.testing import TEST_ARGUMENTS, RunningBroker
from tests.interop.toolchains import TOOLCHAINS, skip_reason

_ALLOWED = {skip_reason(tool) for tool in TOOLCHAINS}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(__file__.rpartition("/")[0]):
            item.add_marker(pytest.mark.interop)
            item.add_marker(pytest.mark.timeout(1500))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and "interop" in item.keywords:
        assert isinstance(report.longrepr, tuple)
        reason = report.longrepr[2].removeprefix("Skipped: ")
        if reason not in _ALLOWED:
            report.outcome = "failed"
            report.longrepr = f"this may not be skipped here: {reason}"
    return report


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with RunningBroker(tmp_path_factory.mktemp("interop") / "data", TEST_ARGUMENTS) as broker:
        yield broker


@pytest.fixture(scope="session")
def document(broker: RunningBroker) -> bytes:
    """Return the OpenAPI document that the broker serves."""
    with urlopen(f"{broker.url}/openapi.json") as response:
        return bytes(response.read())
