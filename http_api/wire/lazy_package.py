"""Import parts of a package without the rest of it, so that a start costs only what it uses."""

import sys
from importlib.util import find_spec, module_from_spec
from threading import RLock
from typing import Any


def import_without_init(name: str) -> None:
    """Import the package `name`, but run its `__init__` only when a name that the package itself
    defines is first read. Its submodules can be imported at once.

    A submodule that was not imported counts as such a name in `from package import submodule`, but
    not in `import package.submodule`. Do nothing if the package is imported already. Raises
    ModuleNotFoundError. Reading the first name raises the errors of the `__init__`. Any thread may
    read.
    """
    if name in sys.modules:
        return
    spec = find_spec(name)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    loader = spec.loader
    package = module_from_spec(spec)
    lock = RLock()
    is_running = False

    def run_init(attribute: str) -> Any:
        nonlocal is_running
        with lock:  # the `__init__` itself may read names that do not exist yet
            if not is_running and "__getattr__" in vars(package):
                is_running = True
                try:
                    loader.exec_module(package)
                finally:
                    is_running = False
                del vars(package)["__getattr__"]
        if attribute in vars(package):
            return vars(package)[attribute]
        raise AttributeError(f"module {name!r} has no attribute {attribute!r}", name=attribute)

    vars(package)["__getattr__"] = run_init
    sys.modules[name] = package
