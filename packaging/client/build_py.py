"""Which files of the package `holdfast` each of the two wheels gets.

files.txt lists the modules of holdfast-client, as paths below the checkout. The wheel holdfast gets
all others, so no file is in both. `make docs` writes the list from the imports.
"""

from pathlib import Path
from typing import ClassVar

from setuptools.command.build_py import build_py

LISTED = frozenset(Path(__file__).with_name("files.txt").read_text("utf-8").split())


class _SomeFiles(build_py):
    is_client: ClassVar[bool]

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        """Return (package, module, path) of the package's modules that this wheel gets."""
        found = super().find_package_modules(package, package_dir)
        folder = package.replace(".", "/")
        return [each for each in found if (f"{folder}/{each[1]}.py" in LISTED) == self.is_client]


class ClientFiles(_SomeFiles):
    """The modules of holdfast-client."""

    is_client = True


class BrokerFiles(_SomeFiles):
    """The modules of holdfast: all that holdfast-client does not have."""

    is_client = False
