"""The wheel holdfast-client contains what the client imports, and depends on what that imports."""

import re
import sys
import tomllib
from pathlib import Path

import holdfast
from tests.packaging.client_files import client_modules, path_of
from tests.support.tree.layers import MODULES

ROOT = Path(__file__).parents[2]
CLIENT = ROOT / "packaging" / "client"
BROKER_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CLIENT_PROJECT = tomllib.loads((CLIENT / "pyproject.toml").read_text())["project"]

#: Modules that the client uses only if they are installed.
OPTIONAL = {"uvloop"}


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[>=<\[;]", each)[0].replace("-", "_") for each in requirements}


def imported(modules: set[str]) -> set[str]:
    """Return the top-level names of other projects' modules that these modules import."""
    found = {
        name.partition(".")[0]
        for module in modules
        for _, name, _ in MODULES[module].imports(at_runtime=True)
    }
    return found - set(sys.stdlib_module_names) - {"holdfast"}


def test_the_list_of_files_is_what_the_client_imports() -> None:
    listed = (CLIENT / "files.txt").read_text().split()
    assert listed == sorted(map(path_of, client_modules())), "`make docs` writes the list"


def test_nothing_of_the_broker_is_listed() -> None:
    parts = ("groups.", "holdservice.", "http_api.", "spark.", "holdfast.broker.", "holdfast.cli.")
    assert [each for each in client_modules() if f"{each}.".startswith(parts)] == []


def test_the_client_depends_on_what_its_files_import() -> None:
    extra = {
        name
        for requirements in CLIENT_PROJECT["optional-dependencies"].values()
        for name in names([each.replace("-api", "") for each in requirements])
    }
    needed = names(CLIENT_PROJECT["dependencies"])
    assert imported(client_modules()) - OPTIONAL == needed | extra
    assert not {"lmdb", "lark", "uvloop", "aiohttp", "click"} & needed


def test_both_projects_ask_for_the_same_versions() -> None:
    both = {*CLIENT_PROJECT["dependencies"]}
    assert both <= {*BROKER_PROJECT["dependencies"]}
    for extra, requirements in CLIENT_PROJECT["optional-dependencies"].items():
        assert BROKER_PROJECT["optional-dependencies"][extra] == requirements
    for key in ("requires-python", "license"):
        assert CLIENT_PROJECT[key] == BROKER_PROJECT[key]


def test_the_broker_depends_on_the_client_of_its_own_version() -> None:
    version = BROKER_PROJECT["version"]
    assert version == holdfast.__version__
    assert f"holdfast-client=={version}" in BROKER_PROJECT["dependencies"]


def test_the_licence_is_the_same_file() -> None:
    assert (CLIENT / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
