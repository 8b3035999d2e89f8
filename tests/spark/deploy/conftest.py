from collections.abc import Iterator

import pytest

from holdfast.spark.deploy.pickling import ship_archive


@pytest.fixture(autouse=True)
def nothing_shipped() -> Iterator[None]:
    """Later tests pickle without the archive that a test has shipped."""
    yield
    ship_archive(None)
