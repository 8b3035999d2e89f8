"""Which modules the wheel holdfast-client contains: the client's, and what they import.

`python -m tests.packaging.client_files` prints packaging/client/files.txt.
"""

from tests.support.tree.layers import MODULES, own_imports

#: Beside the package's `__init__` and the client: the former name of a module of the client.
ROOTS = ("holdfast", "holdfast.client", "commitlog.batch")


def client_modules() -> set[str]:
    """Return the names of the modules. An import inside a function counts like any other."""
    found: set[str] = set()
    waiting = [name for name in MODULES if name in ROOTS or name.startswith("holdfast.client.")]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += [own for _, own in own_imports(MODULES[name])]
            if "." in name:
                waiting.append(name.rpartition(".")[0])
    return found


def path_of(name: str) -> str:
    """Return the path of a module below the folder that has the package."""
    parts = name.split(".")
    if parts[0] != "holdfast":
        parts.insert(0, "holdfast")
    return "/".join(parts) + ("/__init__.py" if MODULES[name].is_package else ".py")


if __name__ == "__main__":
    print("\n".join(sorted(map(path_of, client_modules()))))
