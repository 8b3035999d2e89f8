"""The architecture, read from the source: imports run one way, and pure files stay pure.

An import inside a function, or at the first use of a name, counts like any other. An import under
`if TYPE_CHECKING:` counts, too, but makes no file impure, because it never runs.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter

import pytest

from tests.support.tree import counts
from tests.support.tree.counts import FORMER_NAMES, PARTS
from tests.support.tree.layers import (
    MODULES,
    ROOT,
    WITHIN,
    imports_within,
    own_imports,
    sub_packages,
)

#: At most this many files are in a folder, and modules and sub-packages directly in a package.
MOST_FILES = 23
MOST_PARTS = 15

#: Modules that both ends of the wire share: every part may import them; they use no file or thread.
FORMAT = ("commitlog.format", "commitlog.errors", "commitlog.lazy_import")

#: Which parts each part may import, besides itself. A name covers its submodules, except
#: "holdfast", which covers only the package's `__init__`. The longest name that covers a module is
#: its rule.
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "amqp": (
        *("commitlog", "consumequeue", "groups", "holdservice"),
        *("http_api.access", "http_api.config", "http_api.limits", "http_api.metrics"),
        "http_api.wire",
    ),
    # The bytes and the rules of AMQP know nothing of the broker.
    "amqp.engine": ("amqp.wire",),
    "amqp.messages": (*FORMAT, "amqp.wire"),
    "amqp.wire": (),
    "commitlog": (),
    "consumequeue": ("commitlog",),
    "holdservice": ("commitlog", "consumequeue"),
    "groups": ("commitlog", "consumequeue", "holdservice"),
    "http_api": ("commitlog", "consumequeue", "holdservice", "groups"),
    "holdfast.config": (
        "amqp.config",
        "commitlog.config",
        "commitlog.setting",
        "consumequeue.config",
        "groups.config",
        "holdservice.config",
        "http_api.access.config",
        "http_api.config",
        "holdfast.units",
    ),
    "holdfast.units": ("commitlog.setting",),
    "holdfast.check": (
        "commitlog",
        "consumequeue",
        "groups",
        "holdfast.backup",
        "http_api.access",
    ),
    "holdfast.backup": ("commitlog", "consumequeue", "groups"),
    "holdfast.repair": ("commitlog", "consumequeue", "groups", "holdfast.backup", "holdfast.check"),
    "holdfast.storage": (),
    "holdfast.storage.storage_opening": ("commitlog", "consumequeue", "groups", "holdfast.config"),
    "holdfast.storage.figures": ("commitlog",),
    "holdfast.storage.machine_memory": (),
    "holdfast.storage.alarms": ("commitlog", "consumequeue", "holdfast.storage.machine_memory"),
    "holdfast.storage.storage": (
        "holdfast.storage.alarms",
        "commitlog",
        "consumequeue",
        "groups",
        "holdfast.config",
        "holdfast.storage.storage_opening",
    ),
    "holdfast.storage.storage_metrics": ("commitlog", "consumequeue", "holdfast.storage.storage"),
    # The composition root: the only file that knows every part of the broker.
    "holdfast.broker": (
        "amqp",
        "commitlog",
        "consumequeue",
        "groups",
        "holdservice",
        "http_api",
        "holdfast",
        "holdfast.config",
        "holdfast.storage.figures",
        "holdfast.storage.storage",
        "holdfast.storage.storage_metrics",
    ),
    "holdfast.arrow": FORMAT,
    "holdfast.client": (
        *FORMAT,
        "amqp.engine",
        "amqp.wire",
        "holdfast",
        "holdfast.arrow",
        "holdfast.log_files",
    ),
    "holdfast": ("holdfast.client",),
    "holdfast.free_port": (),
    "holdfast.running_broker": ("holdfast.client", "holdfast.free_port"),
    "holdfast.testing": ("holdfast.running_broker",),
    "holdfast.demo": ("holdfast", "holdfast.client", "holdfast.running_broker", "spark"),
    # Works without a broker: reads the state's records from their copy in the log, and walks past
    # damage.
    "holdfast.log_files": (
        *FORMAT,
        "commitlog.disk.disk",
        "commitlog.segments.log_scan",
        "commitlog.segments.segment",
        "consumequeue.state.records",
        "consumequeue.state.replay",
        "consumequeue.topics",
    ),
    "spark": (*FORMAT, "holdfast", "holdfast.arrow", "holdfast.client", "holdfast.log_files"),
    "holdfast.cli": (
        "amqp.listener",
        "commitlog.disk.data_dir",
        "commitlog.errors",
        "commitlog.disk.owned_files",
        "holdfast",
        "holdfast.backup",
        "holdfast.broker",
        "holdfast.check",
        "holdfast.client",
        "holdfast.config",
        "holdfast.demo",
        "holdfast.repair",
        "holdfast.storage.machine_memory",
        "holdfast.units",
        "http_api.access",
        "http_api.wire.aiohttp_parser",
        "http_api.wire.tls",
    ),
    "holdfast.__main__": ("holdfast.cli",),
}

#: Modules that a pure file may not import: modules that touch the outside world or wait for it.
IMPURE = {
    "aiohttp", "asyncio", "concurrent", "fcntl", "http", "io", "lmdb", "mmap",
    "multiprocessing", "os", "pathlib", "prometheus_client", "random", "secrets", "select",
    "shutil", "signal", "socket", "subprocess", "tempfile", "threading", "time", "urllib.request",
    "uvloop",
}  # fmt: skip

#: Files that are pure even if their docstrings do not say so. A name covers its submodules.
PURE = (
    *FORMAT,
    "amqp.engine",
    "amqp.messages",
    "amqp.wire",
    "commitlog.setting",
    "consumequeue.errors",
    "consumequeue.state.records",
    "consumequeue.state.replay",
    "consumequeue.topics",
)


def _is_pure(name: str) -> bool:
    return any(_covers(each, name) for each in PURE) or MODULES[name].says_it_is_pure


def _covers(rule: str, name: str) -> bool:
    return name == rule or (rule != "holdfast" and name.startswith(f"{rule}."))


def _rule_for(name: str) -> str:
    covering = [rule for rule in MAY_IMPORT if _covers(rule, name)]
    assert covering, f"{name} has no rule: say in MAY_IMPORT what it may import"
    return max(covering, key=len)


def test_the_source_is_found() -> None:
    assert {*PURE, "holdfast.config", "holdfast"} <= MODULES.keys()
    assert not any("tests" in name.split(".") for name in MODULES)


def test_imports_run_one_way() -> None:
    # L20
    refused = []
    for name, module in MODULES.items():
        rule = _rule_for(name)
        for line, imported in own_imports(module):
            if not any(_covers(each, imported) for each in (rule, *MAY_IMPORT[rule])):
                refused.append(f"{module.path}:{line}: {name} may not import {imported}")
    assert not refused, "\n".join(refused)


def test_parts_are_imported_by_their_one_name() -> None:
    refused = [
        f"{module.path}:{line}: import holdfast.{imported} instead"
        for module in MODULES.values()
        for line, imported, _ in module.imports()
        if imported.split(".")[0] in {*PARTS, "tests", "bench"}
    ]
    assert not refused, "\n".join(refused)


@pytest.mark.parametrize("package", sorted(WITHIN))
def test_sub_packages_import_one_way(package: str) -> None:
    assert sorted(WITHIN[package]) == sub_packages(package), "say in WITHIN what each may import"
    for place, other, name, imported in imports_within(package):
        if place in WITHIN[package]:
            allowed = WITHIN[package][place]
            assert other in allowed, f"{package}.{place} may not import {other}: {name}, {imported}"


def test_every_package_with_sub_packages_has_a_table() -> None:
    # holdfast's own sub-packages are in MAY_IMPORT.
    found = {name for name in MODULES if MODULES[name].is_package and sub_packages(name)}
    assert found - {"holdfast"} == WITHIN.keys()


@pytest.mark.parametrize("package", sorted(WITHIN))
def test_a_package_has_no_import_cycle(package: str) -> None:
    graph: dict[str, set[str]] = defaultdict(set)
    for place, other, _, _ in imports_within(package):
        graph[place].add(other)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_a_sub_package_imports_nothing_itself() -> None:
    for package in WITHIN:
        for each in sub_packages(package):
            assert not list(MODULES[f"{package}.{each}"].imports()), f"{package}.{each}"


def test_the_product_uses_no_former_name() -> None:
    for module in MODULES.values():
        for line, imported in own_imports(module):
            assert imported not in FORMER_NAMES, f"{module.path}:{line}: {imported}"


def test_no_two_modules_import_each_other() -> None:
    assert not counts.cycles(counts.product(ROOT))


def test_a_folder_can_be_read_at_a_glance() -> None:
    files = counts.product(ROOT)
    for each in (files, counts.tests(ROOT)):
        size, folder = counts.largest_folder(each)
        assert size <= MOST_FILES, f"{folder} has {size} files"
    for package, parts in counts.parts_of_packages(files).items():
        assert parts <= MOST_PARTS, f"{package} has {parts} modules and sub-packages"


def test_no_class_is_split_over_files_by_inheritance() -> None:
    assert not counts.split_classes(counts.product(ROOT))


def test_what_sparks_tasks_run_imports_no_msgspec() -> None:
    # An executor has only the libraries that EXECUTORS_NEED names.
    refused = [
        f"{MODULES[each].path}:{line}"
        for name in MODULES
        if any(_covers(rule, name) for rule in FORMAT)
        for each in _with_all_it_imports(name)
        for line, imported, _ in MODULES[each].imports(at_runtime=True)
        if imported == "msgspec" or imported.startswith("msgspec.")
    ]
    assert not refused


def test_pure_files_import_no_io() -> None:
    refused = [
        f"{name} is pure, but {MODULES[each].path}:{line} imports {imported}"
        for name in filter(_is_pure, MODULES)
        for each in _with_all_it_imports(name)
        for line, imported, _ in MODULES[each].imports(at_runtime=True)
        if any(imported == io or imported.startswith(f"{io}.") for io in IMPURE)
    ]
    assert not refused, "\n".join(refused)


def _with_all_it_imports(name: str) -> set[str]:
    reached, waiting = set(), [name]
    while waiting:
        each = waiting.pop()
        if each not in reached:
            reached.add(each)
            waiting += [own for _, own in own_imports(MODULES[each], at_runtime=True)]
    return reached


def test_every_module_and_public_class_has_a_docstring() -> None:
    missing = [
        f"{module.path}:{getattr(node, 'lineno', 1)}"
        for module in MODULES.values()
        for node in _documented(module.tree)
        if not ast.get_docstring(node)
    ]
    assert not missing, "without a docstring: " + ", ".join(missing)


def _documented(scope: ast.Module | ast.ClassDef) -> Iterator[ast.Module | ast.ClassDef]:
    """Yield a module or class, and the public classes in it."""
    yield scope
    for node in scope.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from _documented(node)
