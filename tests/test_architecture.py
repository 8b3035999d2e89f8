"""The house's shape, read from the source: imports run one way, and pure files stay pure.

An import inside a function counts like any other. One under `if TYPE_CHECKING:` counts between
parts, but makes no circle and nothing impure, since it is never run.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PARTS = ("commitlog", "consumequeue", "groups", "holdservice", "http_api", "spark")

#: What both ends of the wire share: importable by everyone, and without any file or thread.
FORMAT = (
    "commitlog.batch",
    "commitlog.batch_check",
    "commitlog.batch_encoding",
    "commitlog.batch_header",
    "commitlog.batch_layout",
    "commitlog.batch_run",
    "commitlog.bodies_apart",
    "commitlog.checksum",
    "commitlog.errors",
    "commitlog.header_table",
    "commitlog.message_id",
    "commitlog.priority",
    "commitlog.segment_format",
)

#: Who may import what, beside itself. A name covers what lies under it, but "holdfast" only the
#: package's own __init__. The longest name that covers a module is its rule.
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "commitlog": (),
    "consumequeue": ("commitlog",),
    "holdservice": ("commitlog", "consumequeue"),
    "groups": ("commitlog", "consumequeue", "holdservice"),
    "http_api": ("commitlog", "consumequeue", "holdservice", "groups"),
    "holdfast.config": (
        "commitlog.config",
        "commitlog.setting",
        "consumequeue.config",
        "groups.config",
        "holdservice.config",
        "http_api.access.config",
        "http_api.config",
    ),
    "holdfast.config_reference": ("holdfast.config",),
    "holdfast.check": (
        "commitlog",
        "consumequeue",
        "groups",
        "holdfast.backup",
        "http_api.access",
    ),
    "holdfast.backup": ("commitlog", "consumequeue", "groups"),
    "holdfast.repair": ("commitlog", "consumequeue", "groups", "holdfast.backup", "holdfast.check"),
    "holdfast.dump": ("commitlog",),
    "holdfast.storage_opening": ("commitlog", "consumequeue", "groups", "holdfast.config"),
    "holdfast.alarms": ("commitlog", "consumequeue"),
    "holdfast.storage": (
        "holdfast.alarms",
        "commitlog",
        "consumequeue",
        "groups",
        "holdfast.config",
        "holdfast.storage_opening",
    ),
    "holdfast.storage_metrics": ("commitlog", "consumequeue", "holdfast.storage"),
    # The composition: the only file that knows every part of the broker.
    "holdfast.broker": (
        "commitlog",
        "consumequeue",
        "groups",
        "holdservice",
        "http_api",
        "holdfast",
        "holdfast.config",
        "holdfast.storage",
        "holdfast.storage_metrics",
    ),
    "holdfast.client": (*FORMAT, "holdfast"),
    "holdfast": ("holdfast.client",),
    "holdfast.running_broker": ("holdfast.client",),
    "holdfast.testing": ("holdfast.running_broker",),
    "holdfast.demo": ("holdfast", "holdfast.client", "holdfast.running_broker", "spark"),
    "spark": (*FORMAT, "holdfast", "holdfast.client"),
    # Without a broker: the state's records from their copy in the log, and the walk past damage.
    "spark.files": (
        *FORMAT,
        "commitlog.disk",
        "commitlog.log_scan",
        "commitlog.segment",
        "consumequeue.state_records",
        "consumequeue.state_replay",
        "consumequeue.topics",
        "spark",
    ),
    "holdfast.cli": (
        "commitlog.data_dir",
        "commitlog.errors",
        "holdfast",
        "holdfast.backup",
        "holdfast.broker",
        "holdfast.check",
        "holdfast.client",
        "holdfast.config",
        "holdfast.config_reference",
        "holdfast.demo",
        "holdfast.dump",
        "holdfast.repair",
        "http_api.access",
        "http_api.framing",
        "http_api.tls",
    ),
    "holdfast.__main__": ("holdfast.cli",),
}

#: What a file that calls itself pure may not import: whatever touches the world or waits for it.
IMPURE = {
    "aiohttp", "asyncio", "concurrent", "fcntl", "http", "io", "lmdb", "mmap",
    "multiprocessing", "os", "pathlib", "prometheus_client", "random", "secrets", "select",
    "shutil", "signal", "socket", "subprocess", "tempfile", "threading", "time", "urllib.request",
    "uvloop",
}  # fmt: skip

#: Files that are pure whatever they call themselves.
PURE = {
    "commitlog.batch",
    "commitlog.batch_check",
    "commitlog.batch_encoding",
    "commitlog.batch_header",
    "commitlog.batch_layout",
    "commitlog.batch_run",
    "commitlog.bodies_apart",
    "commitlog.checksum",
    "commitlog.errors",
    "commitlog.header_table",
    "commitlog.message_id",
    "commitlog.priority",
    "commitlog.segment_format",
    "commitlog.setting",
    "consumequeue.errors",
    "consumequeue.state_records",
    "consumequeue.state_replay",
    "consumequeue.topics",
}


@dataclass(frozen=True)
class Module:
    """One source file. A part that is a folder of its own goes without "holdfast." in `name`."""

    name: str
    path: Path

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.path.read_text("utf-8"), str(self.path))

    @property
    def is_pure(self) -> bool:
        says_so = re.search(r"\bPure\b[.:;]", ast.get_docstring(self.tree) or "")
        return self.name in PURE or says_so is not None

    def imports(self, *, at_runtime: bool = False) -> Iterator[tuple[int, str, list[str]]]:
        """Yield (line, module, names taken from it); all, or without those for types alone."""
        for node in _nodes(self.tree, with_types=not at_runtime):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield node.lineno, alias.name, []
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{self.path}:{node.lineno}: a relative import"
                assert node.module is not None
                yield node.lineno, node.module, [alias.name for alias in node.names]


def _nodes(tree: ast.AST, *, with_types: bool) -> Iterator[ast.AST]:
    """Yield every node, without what stands under `if TYPE_CHECKING:` unless asked for."""
    for node in ast.iter_child_nodes(tree):
        if (
            isinstance(node, ast.If)
            and ast.unparse(node.test) == "TYPE_CHECKING"
            and not with_types
        ):
            continue
        yield node
        yield from _nodes(node, with_types=with_types)


def _modules() -> dict[str, Module]:
    found = {}
    for part in PARTS:
        for path in (ROOT / part).rglob("*.py"):
            found[_name(path)] = Module(_name(path), path)
    for path in (ROOT / "holdfast").rglob("*.py"):
        if path.relative_to(ROOT / "holdfast").parts[0] not in PARTS:
            found[_name(path)] = Module(_name(path), path)
    return found


def _name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = _modules()


def _own_imports(module: Module, *, at_runtime: bool = False) -> Iterator[tuple[int, str]]:
    """Yield (line, name of the module of ours) for every import of one."""
    for line, imported, names in module.imports(at_runtime=at_runtime):
        if imported != "holdfast" and not imported.startswith("holdfast."):
            continue
        for each in names or [""]:
            full = _short(f"{imported}.{each}") if each else _short(imported)
            yield line, full if full in MODULES else _short(imported)


def _short(name: str) -> str:
    rest = name.removeprefix("holdfast.")
    return rest if rest.split(".")[0] in PARTS else name


def _covers(rule: str, name: str) -> bool:
    return name == rule or (rule != "holdfast" and name.startswith(f"{rule}."))


def _rule_for(name: str) -> str:
    covering = [rule for rule in MAY_IMPORT if _covers(rule, name)]
    assert covering, f"{name} has no rule: say in MAY_IMPORT what it may import"
    return max(covering, key=len)


def test_the_source_is_found() -> None:
    assert PURE | {"holdfast.config", "holdfast"} <= MODULES.keys()
    assert not any("tests" in name.split(".") for name in MODULES)


@pytest.mark.parametrize("name", sorted(MODULES))
def test_imports_run_one_way(name: str) -> None:
    rule = _rule_for(name)
    for line, imported in _own_imports(MODULES[name]):
        allowed = any(_covers(each, imported) for each in (rule, *MAY_IMPORT[rule]))
        assert allowed, f"{MODULES[name].path}:{line}: {name} may not import {imported}"


@pytest.mark.parametrize("name", sorted(MODULES))
def test_parts_are_imported_by_their_one_name(name: str) -> None:
    for line, imported, _ in MODULES[name].imports():
        first = imported.split(".")[0]
        assert first not in {*PARTS, "tests", "bench"}, (
            f"{MODULES[name].path}:{line}: import holdfast.{imported} instead"
        )


def test_no_two_modules_import_each_other() -> None:
    graph = {
        name: {own for _, own in _own_imports(module, at_runtime=True) if own != name}
        for name, module in MODULES.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


@pytest.mark.parametrize("name", sorted(n for n, module in MODULES.items() if module.is_pure))
def test_pure_files_import_no_io(name: str) -> None:
    for each in _with_all_it_imports(name):
        for line, imported, _ in MODULES[each].imports(at_runtime=True):
            impure = any(imported == io or imported.startswith(f"{io}.") for io in IMPURE)
            assert not impure, f"{name} is pure, but {MODULES[each].path}:{line} imports {imported}"


def _with_all_it_imports(name: str) -> set[str]:
    reached, waiting = set(), [name]
    while waiting:
        each = waiting.pop()
        if each not in reached:
            reached.add(each)
            waiting += [own for _, own in _own_imports(MODULES[each], at_runtime=True)]
    return reached


@pytest.mark.parametrize("name", sorted(MODULES))
def test_every_public_name_has_a_docstring(name: str) -> None:
    module = MODULES[name]
    missing = [
        f"{module.path}:{node.lineno}: {node.name}"
        for node in _public_definitions(module.tree)
        if ast.get_docstring(node) is None
    ]
    assert ast.get_docstring(module.tree), f"{module.path} does not say what it is"
    assert not missing, "without a docstring: " + ", ".join(missing)


def _public_definitions(
    scope: ast.Module | ast.ClassDef,
) -> Iterator[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in scope.body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if node.name.startswith("_") or any(_is_exempt(each) for each in node.decorator_list):
            continue
        yield node
        if isinstance(node, ast.ClassDef):
            yield from _public_definitions(node)


def _is_exempt(decorator: ast.expr) -> bool:
    """Say whether a decorator makes a definition part of another that is documented."""
    name = ast.unparse(decorator)
    return name.endswith((".setter", ".deleter")) or name in {"overload", "typing.overload"}
