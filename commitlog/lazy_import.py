"""Modules that are imported at their first use, so that a start costs only what it uses. Pure."""

from importlib import import_module
from typing import Any


def import_at_first_use(namespace: dict[str, Any], **modules: str) -> None:
    """Bind each name in `namespace`, the globals of a module, to the module with that full name.

    The module is imported when an attribute of it is first read. That read raises the errors of the
    import. From then on the name is bound to the module itself, so further reads cost nothing
    extra. Any thread may read. For type checkers, the caller also writes the import under
    `if TYPE_CHECKING`.
    """
    for name, module in modules.items():
        namespace[name] = _Unimported(namespace, name, module)


def is_imported(module: object) -> bool:
    """Return whether the module that a name of `import_at_first_use` stands for is imported."""
    return not isinstance(module, _Unimported)


class _Unimported:
    """Stands for a module until an attribute of it is read."""

    def __init__(self, namespace: dict[str, Any], name: str, module: str) -> None:
        self._namespace = namespace
        self._name = name
        self._module = module

    def __getattr__(self, attribute: str) -> Any:
        module = self._namespace[self._name] = import_module(self._module)
        return getattr(module, attribute)
