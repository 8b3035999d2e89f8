"""The picture in ARCHITECTURE.md, which `python -m tests.support.tree.picture` makes."""

from collections import defaultdict
from graphlib import TopologicalSorter
from pathlib import Path

from tests.support.tree.counts import PARTS
from tests.support.tree.layers import (
    MODULES,
    ROOT,
    WITHIN,
    imports_within,
    own_imports,
    sub_packages,
)

PAGE = ROOT / "ARCHITECTURE.md"
BEGIN = "<!-- picture: `make docs` writes it from the imports -->"
END = "<!-- end of picture -->"

Graph = dict[str, set[str]]


def packages() -> list[str]:
    """Return every package except holdfast itself, each after the packages that it imports."""
    names = [*PARTS, *(f"holdfast.{each}" for each in sub_packages("holdfast"))]
    graph = graph_of_packages()
    return _lowest_first({name: graph[name] for name in names})


def graph_of_packages() -> Graph:
    """Return the packages that each package imports."""
    graph: Graph = defaultdict(set)
    for name, module in MODULES.items():
        for _, imported in own_imports(module):
            own, other = _package_of(name), _package_of(imported)
            if own and other and own != other:
                graph[own].add(other)
    return graph


def _package_of(name: str) -> str | None:
    parts = name.split(".")
    if parts[0] in PARTS:
        return parts[0]
    package = ".".join(parts[:2])
    return package if len(parts) > 1 and MODULES[package].is_package else None


def graph_within(package: str) -> Graph:
    """Return the sub-packages that each one imports."""
    graph: Graph = {each: set() for each in sub_packages(package)}
    for place, other, _, _ in imports_within(package):
        if place in graph and other in graph:
            graph[place].add(other)
    return graph


def _lowest_first(graph: Graph) -> list[str]:
    """Return the nodes, each after those that it imports, else in the order of their names."""
    order = TopologicalSorter({node: sorted(graph[node]) for node in sorted(graph)})
    order.prepare()
    found: list[str] = []
    while order.is_active():
        ready = sorted(order.get_ready())
        found += ready
        order.done(*ready)
    return found


def _direct(graph: Graph) -> Graph:
    """Return the graph without the arrows that follow from others."""

    def reached(node: str) -> set[str]:
        below = graph.get(node, set())
        return below.union(*(reached(each) for each in below)) if below else set()

    return {
        node: below - set().union(*(reached(each) for each in below))
        for node, below in graph.items()
    }


def _folder(package: str) -> str:
    return package.replace(".", "/") + "/"


def _node(name: str) -> str:
    return name.replace(".", "_")


def drawing() -> list[str]:
    """Return the lines of the drawing."""
    lines = ["```mermaid", "graph TD"]
    for package in reversed(packages()):
        if package not in WITHIN:
            lines.append(f'  {_node(package)}["{_folder(package)}"]')
            continue
        graph = graph_within(package)
        lines.append(f'  subgraph {_node(package)}["{_folder(package)}"]')
        lines += [f'    {_node(f"{package}.{each}")}["{each}/"]' for each in sorted(graph)]
        down = [(each, other) for each, below in _direct(graph).items() for other in below]
        for each, other in sorted(down):
            lines.append(f"    {_node(f'{package}.{each}')} --> {_node(f'{package}.{other}')}")
        lines.append("  end")
    for package, below in sorted(_direct(graph_of_packages()).items()):
        lines += [f"  {_node(package)} --> {_node(other)}" for other in sorted(below)]
    return [*lines, "```"]


def table() -> list[str]:
    """Return the lines of the table: each package, followed by its sub-packages."""
    lines = ["| folder | what it holds | imports of the folders beside it |", "|---|---|---|"]
    for package in packages():
        lines.append(f"| **`{_folder(package)}`** | {MODULES[package].summary} | |")
        if package not in WITHIN:
            continue
        graph = graph_within(package)
        for each in _lowest_first(graph):
            imports = ", ".join(sorted(graph[each]))
            name = f"{package}.{each}"
            lines.append(f"| `{_folder(name)}` | {MODULES[name].summary} | {imports} |")
    return lines


def on_page(text: str) -> str:
    """Return the page with the picture in its place."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    assert after, f"the page lacks one of its markers: {BEGIN} {END}"
    return "\n".join([before + BEGIN, "", *drawing(), "", *table(), "", END + after])


def write(page: Path = PAGE) -> None:
    """Write the current picture into the page."""
    page.write_text(on_page(page.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    write()
