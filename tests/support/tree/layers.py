"""The product's modules, their imports, and what each sub-package may import of its package."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeGuard

from tests.support.tree.counts import FORMER_NAMES, PARTS, short_name

ROOT = Path(__file__).parents[3]

#: What each sub-package may import of its own package: other sub-packages, and the package's own
#: files. The package's own files may import every sub-package, if that makes no circle.
WITHIN: dict[str, dict[str, tuple[str, ...]]] = {
    "amqp": {
        "wire": (),
        "engine": ("wire",),
        "messages": ("wire",),
        "termini": ("wire",),
        "nodes": ("engine", "messages", "termini", "wire", "conditions_of", "config"),
    },
    "commitlog": {
        "format": ("errors", "lazy_import"),
        "disk": ("errors", "log_limit"),
        "segments": ("disk", "format", "config", "errors"),
        "append": ("segments", "format", "errors"),
    },
    "consumequeue": {
        "lmdb_env": ("errors",),
        "index": ("lmdb_env", "errors", "topics"),
        "state": ("index", "lmdb_env", "config", "errors", "lost_ranges", "slices", "topics"),
        "damage": ("index", "state", "errors", "lost_ranges", "topics"),
        "reading": (
            *("damage", "index", "state"),
            *("errors", "lost_ranges", "slices", "thread_calls", "topics"),
        ),
        "maintenance": ("damage", "index", "reading", "state", "config", "errors", "topics"),
    },
    "groups": {
        "cursor": (),
        "core": ("cursor", "config", "errors"),
        "storage": ("cursor", "config", "settings"),
        "serving": (
            *("core", "cursor", "storage"),
            *("config", "descriptions", "errors", "service_types", "settings"),
        ),
    },
    "http_api": {
        # From bytes to requests and back: it knows no endpoint.
        "wire": ("config",),
        "access": ("wire",),
        "limits": ("access", "wire", "config"),
        "routing": ("access", "limits", "metrics", "wire", "config"),
        "schemas": ("routing",),
        "endpoints": ("access", "limits", "metrics", "routing", "schemas", "wire", "config"),
        # The files of a page, which is a client of the API like every other.
        "console": ("routing", "wire"),
    },
    "spark": {
        "options": ("errors",),
        "broker": ("options", "errors"),
        "read": ("broker", "options", "errors"),
        "stream": ("broker", "options", "read", "errors", "shipping"),
        "write": ("broker", "options", "errors", "shipping"),
    },
    "holdfast.cli": {
        "output": (),
        "input": ("output", "exits"),
        "process": ("output", "exits"),
        "commands": ("input", "output", "process", "exits"),
    },
    "holdfast.client": {
        "transport": ("errors",),
        "read": ("transport", "errors"),
        "produce": ("read", "transport", "errors", "instrumentation", "timestamps"),
        "consume": ("read", "transport", "errors", "instrumentation", "values"),
        "session": ("produce", "transport", "errors"),
        "tables": ("read", "transport", "errors"),
        "channels": ("session", "produce", "transport", "errors"),
    },
}


@dataclass(frozen=True)
class Module:
    """One source file. If a part is a folder of its own, `name` omits the prefix "holdfast."."""

    name: str
    path: Path

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.path.read_text("utf-8"), str(self.path))

    @property
    def says_it_is_pure(self) -> bool:
        return re.search(r"\bPure\b[.:;]", ast.get_docstring(self.tree) or "") is not None

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    @property
    def summary(self) -> str:
        """The first sentence of its docstring."""
        first, _, _ = (ast.get_docstring(self.tree) or "").partition("\n\n")
        sentence, _, _ = " ".join(first.split()).partition(". ")
        return sentence.rstrip(".") + "."

    def imports(self, *, at_runtime: bool = False) -> Iterator[tuple[int, str, list[str]]]:
        """Yield (line, module, imported names); `at_runtime` skips type-checking imports."""
        yield from self._imports[at_runtime]

    @cached_property
    def _imports(self) -> tuple[list[tuple[int, str, list[str]]], ...]:
        """All imports, and those at runtime."""
        found = list(self._find_imports())
        return [each for each, _ in found], [each for each, for_types in found if not for_types]

    def _find_imports(self) -> Iterator[tuple[tuple[int, str, list[str]], bool]]:
        """Yield each import, and whether it is under `if TYPE_CHECKING:`."""
        for node, for_types in _statements(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield (node.lineno, alias.name, []), for_types
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{self.path}:{node.lineno}: a relative import"
                assert node.module is not None
                names = [alias.name for alias in node.names]
                yield (node.lineno, node.module, names), for_types
            elif isinstance(node, ast.Expr) and _calls(node.value, "import_at_first_use"):
                for each in node.value.keywords:
                    assert isinstance(each.value, ast.Constant), f"{self.path}:{node.lineno}"
                    yield (node.lineno, str(each.value.value), []), for_types


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _calls(node: ast.expr, name: str) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and _is_name(node.func, name)


def _statements(tree: ast.Module) -> Iterator[tuple[ast.stmt, bool]]:
    """Yield every statement, and whether it is under `if TYPE_CHECKING:`."""
    found: list[tuple[ast.AST, bool]] = [(tree, False)]
    while found:
        parent, for_types = found.pop()
        for_types |= isinstance(parent, ast.If) and _is_name(parent.test, "TYPE_CHECKING")
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            for node in getattr(parent, part, ()):
                if isinstance(node, ast.stmt):
                    yield node, for_types
                found.append((node, for_types))


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


def own_imports(module: Module, *, at_runtime: bool = False) -> Iterator[tuple[int, str]]:
    """Yield (line, module name) for every import of one of the project's modules."""
    for line, imported, names in module.imports(at_runtime=at_runtime):
        if imported != "holdfast" and not imported.startswith("holdfast."):
            continue
        for each in names or [""]:
            full = short_name(f"{imported}.{each}") if each else short_name(imported)
            yield line, full if full in MODULES else short_name(imported)


def sub_packages(package: str) -> list[str]:
    """Return the last names of a package's direct sub-packages."""
    below = [
        name.removeprefix(f"{package}.")
        for name, module in MODULES.items()
        if module.is_package and name.startswith(f"{package}.")
    ]
    return sorted(name for name in below if "." not in name)


def place_in(package: str, name: str) -> str | None:
    """Return the sub-package or file of a package that has a module, or None outside of it."""
    if not name.startswith(f"{package}."):
        return None
    return name.removeprefix(f"{package}.").partition(".")[0]


def imports_within(package: str) -> Iterator[tuple[str, str, str, str]]:
    """Yield (place, imported place, module, imported module) for imports within a package."""
    for name, module in MODULES.items():
        if (place := place_in(package, name)) is None or name in FORMER_NAMES:
            continue
        for _, imported in own_imports(module):
            other = place_in(package, imported)
            if other not in {None, place}:
                assert other is not None
                yield place, other, name, imported
