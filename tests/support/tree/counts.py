"""Counts the size and the shape of a tree: `python -m tests.support.tree.counts [TREE]`.

A file's imports include those under `if TYPE_CHECKING`, except in an `__init__`, where they only
declare the names that are imported at their first use.
"""

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache, cached_property
from pathlib import Path

PARTS = ("amqp", "commitlog", "consumequeue", "groups", "holdservice", "http_api", "spark")
LONG_FUNCTION = 50
#: Former names of modules, which only pass on the names of another module. They stay for users'
#: programs and pickles; the product does not use them.
FORMER_NAMES = ("commitlog.batch", "holdfast.client.message")


class Source:
    """One Python file. `name` is its module's name without "holdfast." before a part's name."""

    def __init__(self, path: Path, root: Path) -> None:
        self.path = path
        self.text = path.read_text("utf-8")
        parts = path.relative_to(root).with_suffix("").parts
        self.is_package = parts[-1] == "__init__"
        self.name = ".".join(parts[:-1] if self.is_package else parts)

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def lines(self) -> int:
        return self.text.count("\n")

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes of the tree."""
        return list(ast.walk(self.tree))

    def imported_names(self) -> Iterator[tuple[str, str, str]]:
        """Yield (name in this file, module, name in the module) for every import."""
        for node in self.tree.body if self.is_package else self.nodes:
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    yield alias.asname or alias.name, short_name(node.module), alias.name
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    yield alias.name, short_name(alias.name), ""


def short_name(module: str) -> str:
    rest = module.removeprefix("holdfast.")
    return rest if rest.split(".")[0] in PARTS else module


@cache
def product(root: Path) -> list[Source]:
    """Return the product's files."""
    own = [
        path for path in sorted((root / "holdfast").rglob("*.py"))
        if path.relative_to(root / "holdfast").parts[0] not in PARTS
    ]  # fmt: skip
    parts = [path for part in PARTS for path in sorted((root / part).rglob("*.py"))]
    return [Source(path, root) for path in own + parts]


@cache
def tests(root: Path) -> list[Source]:
    """Return the test files."""
    return [Source(path, root) for path in sorted((root / "tests").rglob("*.py"))]


def largest_folder(files: list[Source]) -> tuple[int, str]:
    """Return how many files the fullest folder holds, without `__init__`, and its name."""
    folders: dict[Path, int] = defaultdict(int)
    for file in files:
        folders[file.path.parent] += not file.is_package
    folder, count = max(folders.items(), key=lambda item: item[1])
    packages = {file.path.parent: file.name for file in files if file.is_package}
    return count, packages.get(folder, folder.name)


def parts_of_packages(files: list[Source]) -> dict[str, int]:
    """Return how many modules and sub-packages each top-level package has directly below it,
    without former names."""
    packages = [*PARTS, "holdfast", "holdfast.cli", "holdfast.client"]
    found = {}
    for package in packages:
        below = {
            file.name.removeprefix(f"{package}.").split(".")[0]
            for file in files
            if file.name.startswith(f"{package}.") and file.name not in FORMER_NAMES
        }
        found[package] = len(below - {"__main__"})
    return found


def cycles(files: list[Source]) -> list[list[str]]:
    """Return the groups of modules that import each other."""
    known = {file.name for file in files}
    graph = {file.name: set(_imported(file, known)) for file in files}
    return sorted(group for group in _components(graph) if len(group) > 1)


def package_cycles(files: list[Source]) -> list[list[str]]:
    """Return the groups of folders that import each other, by the imports of their modules."""
    packages = {file.name for file in files if file.is_package} - {"holdfast"}
    known = {file.name for file in files}
    graph: dict[str, set[str]] = {package: set() for package in packages}
    for file in files:
        folder = file.name if file.is_package else file.name.rpartition(".")[0]
        for each in _imported(file, known):
            other = each if each in packages else each.rpartition(".")[0]
            inside = f"{folder}.".startswith(f"{other}.") or f"{other}.".startswith(f"{folder}.")
            if folder in packages and other in packages and not inside:
                graph[folder].add(other)
    return sorted(group for group in _components(graph) if len(group) > 1)


def _imported(file: Source, known: set[str]) -> Iterator[str]:
    for _, module, name in file.imported_names():
        full = f"{module}.{name}"
        if (target := full if full in known else module) in known and target != file.name:
            yield target


def _components(graph: dict[str, set[str]]) -> Iterator[list[str]]:
    """Yield the strongly connected components (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in graph[node]:
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            at = stack.index(node)
            found.append(sorted(stack[at:]))
            del stack[at:]

    for node in graph:
        if node not in index:
            visit(node)
    return iter(found)


def split_classes(files: list[Source]) -> list[str]:
    """Return the classes with a base class in another file that has no other subclass, and that is
    never used by itself: it is a part of the one class that objects have."""
    used = {name for file in files for node in file.nodes for name in _classes_used(node)}
    homes: dict[tuple[str, str], ast.ClassDef] = {}
    children: dict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
    for file in files:
        names = {here: (module, name) for here, module, name in file.imported_names()}
        for node in file.nodes:
            if not isinstance(node, ast.ClassDef):
                continue
            homes[file.name, node.name] = node
            for base in node.bases:
                bare = base.value if isinstance(base, ast.Subscript) else base
                if isinstance(bare, ast.Name):
                    at = names.get(bare.id, (file.name, bare.id))
                    children[at].append((file.name, node.name))
    return sorted(
        f"{child_module}.{child} <- {module}.{name}"
        for (module, name), ((child_module, child), *others) in children.items()
        if not others and (module, name) in homes and child_module != module
        and name not in used and _is_plain(homes[module, name])
    )  # fmt: skip


def _classes_used(node: ast.AST) -> Iterator[str]:
    """Yield the names that are called, or chosen to be called (`A if condition else B`)."""
    chosen: list[ast.expr] = []
    if isinstance(node, ast.Call):
        chosen = [node.func]
    elif isinstance(node, ast.IfExp):
        chosen = [node.body, node.orelse]
    for each in chosen:
        if isinstance(each, ast.Name | ast.Attribute):
            yield each.id if isinstance(each, ast.Name) else each.attr


def _is_plain(node: ast.ClassDef) -> bool:
    bases = " ".join(ast.unparse(base) for base in node.bases)
    kinds = ("Protocol", "ABC", "Exception", "Error", "Struct", "Enum", "Flag", "NamedTuple")
    methods = [each for each in node.body if isinstance(each, ast.FunctionDef)]
    return bool(methods) and not any(kind in bases for kind in kinds)


def long_functions(files: list[Source]) -> list[str]:
    """Return the functions of more than LONG_FUNCTION lines, with their lengths."""
    found = []
    for file in files:
        for node in file.nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > LONG_FUNCTION:
                    found.append(f"{file.name}.{node.name} ({length})")
    return found


def rows(root: Path) -> Iterator[tuple[str, str]]:
    """Yield the table's rows: what is counted, and the count."""
    own, checks = product(root), tests(root)
    yield "product lines", f"{sum(file.lines for file in own):,}"
    for part in (*PARTS, "holdfast"):
        inside = (file for file in own if file.name.split(".")[0] == part)
        yield f"  of these in {part}", f"{sum(file.lines for file in inside):,}"
    yield "product files", str(len(own))
    yield "test lines", f"{sum(file.lines for file in checks):,}"
    yield "test files", str(len(checks))
    yield "largest folder, product", "{} ({})".format(*largest_folder(own))
    yield "largest folder, tests", "{} ({})".format(*largest_folder(checks))
    for package, count in parts_of_packages(own).items():
        yield f"parts of {package}", str(count)
    found = cycles(own)
    yield "import cycles (modules in them)", f"{len(found)} ({sum(map(len, found))})"
    folders = package_cycles(own)
    yield "cycles of folders", "; ".join([str(len(folders)), *map(", ".join, folders)])
    split = split_classes(own)
    yield "classes split by inheritance", "; ".join([str(len(split)), *split])
    long = long_functions(own)
    yield f"functions over {LONG_FUNCTION} lines", "; ".join([str(len(long)), *sorted(long)])


def main() -> None:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[3]).resolve()
    for name, count in rows(root):
        print(f"{name:32}  {count}")


if __name__ == "__main__":
    main()
