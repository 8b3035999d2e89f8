"""Prints all that a tree of Holdfast promises to its users, as one sorted JSON document.

    python -m tests.support.tree.contract [--write]
    PYTHONPATH=OTHER_TREE python tests/support/tree/contract.py

The second form describes another tree. It uses only what stays the same when modules move: the
broker's replies, the command line, the settings, and the public Python modules. Descriptions and
help texts are left out. `--write` writes tests/golden/contract.json.
"""

import hashlib
import inspect
import json
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.request import Request, urlopen

import click
from prometheus_client.parser import text_string_to_metric_families

import holdfast
import holdfast.client
from holdfast.config import keys
from holdfast.testing import TEST_ARGUMENTS, RunningBroker

ROOT = Path(holdfast.__file__).parents[1]
SNAPSHOT = ROOT / "tests" / "golden" / "contract.json"
PUBLIC_MODULES = (
    "holdfast",
    "holdfast.client",
    "holdfast.client.errors",
    "holdfast.client.message",
    "holdfast.commitlog.batch",
    "holdfast.spark",
    "holdfast.spark.errors",
    "holdfast.testing",
)
#: Members of the OpenAPI document that only explain.
_TEXTS = {"description", "summary", "title", "examples", "example"}
#: Special methods that a user's program calls by its syntax.
_SYNTAX = {
    *("aenter", "aexit", "aiter", "anext", "await", "call", "contains", "enter", "exit"),
    *("getitem", "iter", "len", "next"),
}
_LITERAL = re.compile(r"Literal\[([^\]]*)\]")
#: Stands for a type that no public module exports.
_INTERNAL = "<internal>"
#: Names in types that are not Holdfast's.
_TYPE_NAMES = {
    *("Any", "BaseException", "Callable", "Exception", "False", "ForwardRef", "Iterable"),
    *("Literal", "Mapping", "None", "NoneType", "Optional", "Path", "Sequence", "SparkSession"),
    *("True", "Union"),
}


def contract() -> dict[str, Any]:
    """Return everything that is promised. It starts a broker for a moment."""
    with (
        tempfile.TemporaryDirectory() as folder,
        RunningBroker(Path(folder) / "data", TEST_ARGUMENTS) as broker,
    ):
        _use(broker.url)
        document = json.loads(_get(broker.url, "/openapi.json"))
        metrics = dict(_metrics(_get(broker.url, "/metrics")))
    return {
        "http": {
            "paths": _without_texts(document["paths"]),
            "problems": _problems(document["paths"]),
            "schemas": _without_texts(document["components"]),
        },
        "commands": dict(_commands(import_module("holdfast.cli.main").main, "holdfast")),
        "exit_codes": _exit_codes(),
        "settings": {key.name: _setting(key) for key in keys()},
        "metrics": metrics,
        "python": {name: dict(_public_names(name)) for name in PUBLIC_MODULES},
        "golden_files": _golden_files(),
    }


def as_text(found: Mapping[str, Any]) -> str:
    """Return a contract as sorted JSON, short objects on one line each."""
    return _shown(found, "") + "\n"


def _shown(value: Any, indent: str) -> str:
    text = json.dumps(value, sort_keys=True)
    if not isinstance(value, dict) or len(text) <= 100:
        return text
    inner = indent + " "
    lines = (f"{inner}{json.dumps(name)}: {_shown(value[name], inner)}" for name in sorted(value))
    return "{\n" + ",\n".join(lines) + f"\n{indent}}}"


def differences(old: Any, new: Any, place: str = "") -> Iterator[str]:
    """Yield a line for each difference: `+` added, `-` removed or `!` changed, and its place."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in sorted({*old, *new}):
            where = f"{place}/{name}"
            if name not in new:
                yield f"- {where}"
            elif name not in old:
                yield f"+ {where}"
            else:
                yield from differences(old[name], new[name], where)
    elif old != new:
        added = _additions(old, new)
        yield from [f"+ {place}/{each}" for each in added]
        if added:
            return
        yield f"! {place}: {old!r} -> {new!r}"


def _additions(old: Any, new: Any) -> list[str]:
    """Return the names of what `new` has in addition to `old`: elements of a list; the last
    parameters of a signature if they have defaults; values of a Literal in a signature. Return an
    empty list if anything else differs."""
    if isinstance(old, list) and isinstance(new, list):
        if [each for each in new if each in old] != old:
            return []
        added = [each for each in new if each not in old]
        if any(isinstance(each, dict) and each.get("required") for each in added):
            return []
        return [each["name"] if isinstance(each, dict) else str(each) for each in added]
    if isinstance(old, str) and isinstance(new, str) and old.endswith(")") and new.endswith(")"):
        return _additions_to_signature(old, new)
    return []


def _additions_to_signature(old: str, new: str) -> list[str]:
    values: list[str] = []
    for before, now in zip(_LITERAL.findall(old), _LITERAL.findall(new), strict=False):
        if now.startswith(before + ", "):
            values += now[len(before) + 2 :].split(", ")
            old = old.replace(f"Literal[{before}]", f"Literal[{now}]")
    if old == new:
        return values
    added = new[len(old) + 1 : -1].split(", ")
    if new.startswith(old[:-1] + ", ") and all("=" in each for each in added):
        return values + [each.split(":")[0] for each in added]
    return []


def _get(url: str, path: str) -> str:
    with urlopen(Request(url + path), timeout=60) as response:
        return str(response.read().decode())


def _use(url: str) -> None:
    """Make one use of topics, offsets and groups, so that the metrics have samples with labels."""
    with holdfast.Client(url) as client:
        client.publish("orders", b"hello")
        client.create_group("billing", ["orders"])
        client.receive("billing", "m1")
        client.store_offsets("audit", "orders", {0: 0})


def _metrics(text: str) -> Iterator[tuple[str, Any]]:
    for family in text_string_to_metric_families(text):
        if family.name.startswith("holdfast_"):
            labels = {label for sample in family.samples for label in sample.labels}
            yield family.name, {"type": family.type, "labels": sorted(labels)}


def _without_texts(found: Any, *, names_are_data: bool = False) -> Any:
    """Return the document without explanations; `names_are_data`: users chose the names here."""
    if isinstance(found, list):
        return [_without_texts(each) for each in found]
    if not isinstance(found, dict):
        return found
    if "in" in found and "name" in found:
        names_are_data = False
    return {
        name: _without_texts(value, names_are_data=name in {"properties", "schemas"})
        for name, value in found.items()
        if names_are_data or name not in _TEXTS
    }


def _problems(paths: dict[str, Any]) -> dict[str, list[str]]:
    """Return the problem types of each operation and status, for example GET /v1/topics 404."""
    return {
        f"{method.upper()} {path} {status}": sorted(
            re.findall(r"(?:^|; )([a-z0-9-]+): ", response["description"])
        )
        for path, operations in paths.items()
        for method, operation in operations.items()
        for status, response in operation["responses"].items()
        if int(status) >= 400
    }


def _commands(command: click.Command, path: str) -> Iterator[tuple[str, Any]]:
    yield path, {_parameter_name(each): _parameter(each) for each in command.params}
    if isinstance(command, click.Group):
        for name, each in command.commands.items():
            yield from _commands(each, f"{path} {name}")


def _parameter_name(parameter: click.Parameter) -> str:
    if isinstance(parameter, click.Option):
        return " ".join([*parameter.opts, *parameter.secondary_opts])
    return str(parameter.human_readable_name)


def _parameter(parameter: click.Parameter) -> dict[str, Any]:
    """Return a parameter's promises; those that are off or empty are left out."""
    info = parameter.to_info_dict()
    found = {name: getattr(parameter, name, False) for name in ("is_flag", "hidden", "multiple")}
    found |= {name: info[name] for name in ("required", "nargs", "envvar")}
    found["default"] = re.sub(r".*( at 0x|Sentinel).*", "", repr(parameter.default))
    found["type"] = {k: v for k, v in info["type"].items() if isinstance(v, str | int | list) if v}
    return {name: value for name, value in found.items() if value not in (None, False, "", 1)}


def _exit_codes() -> dict[str, int]:
    codes = {
        module.ExitCode
        for name, module in sys.modules.items()
        if name.startswith("holdfast.cli") and hasattr(module, "ExitCode")
    }
    (only,) = codes
    return {code.name: int(code) for code in only}


def _setting(key: Any) -> dict[str, Any]:
    found = {name: key.field.metadata[name] for name in ("minimum", "maximum", "choices")}
    form = key.field.metadata["form"]
    return found | {
        "type": key.type.__name__,
        "default": str(key.default),
        "form": form and getattr(form[0], "pattern", form[0]),
        "flag": key.flag,
        "variable": key.variable,
    }


def _public_names(module_name: str) -> Iterator[tuple[str, Any]]:
    module = import_module(module_name)
    public = getattr(module, "__all__", None) or [
        name for name, value in vars(module).items()
        if not name.startswith("_") and str(getattr(value, "__module__", "")) == module_name
    ]  # fmt: skip
    for name in public:
        value = getattr(module, name)
        if isinstance(value, ModuleType):
            yield name, "module"
        elif inspect.isclass(value):
            yield name, _class(value)
        elif inspect.isfunction(value):
            yield name, _signature(value)
        else:
            yield name, type(value).__name__


def _class(value: type) -> dict[str, Any]:
    members = {}
    for name in dir(value):
        if name.startswith("_") and name.strip("_") not in _SYNTAX:
            continue
        member = inspect.getattr_static(value, name)
        function = getattr(member, "__func__", member)
        if hasattr(object, name) or hasattr(BaseException, name):
            continue
        if inspect.isfunction(function):
            signature = _signature(function)
            if _INTERNAL not in signature:  # else only Holdfast itself can call it
                members[name] = signature
        else:
            members[name] = "property" if isinstance(member, property) else "value"
    bases = [base.__name__ for base in value.__mro__ if base.__module__ == "builtins"]
    constructor = _signature(value)
    if _INTERNAL in constructor:  # users get such objects from Holdfast, and do not make them
        constructor = _INTERNAL
    return {"bases": bases, "members": members, "constructor": constructor}


def _signature(value: Any) -> str:
    """Return the parameters, without the modules of the names in their types."""
    try:
        text = str(inspect.signature(value).replace(return_annotation=inspect.Signature.empty))
    except ValueError:
        return "builtin"
    text = text.replace(sys.executable, "python")
    text = re.sub(r"\b(?:[A-Za-z_]\w*\.)+(?=[A-Za-z_])|['\"]| at 0x\w+", "", text)
    # numpy for Python 3.12 and newer does not expand its alias.
    text = re.sub(
        r"\bNDArray\[((?:[^][]|\[[^][]*\])*)\]", r"ndarray[tuple[Any, ...], dtype[\1]]", text
    )
    public = _TYPE_NAMES.union(*(vars(import_module(name)) for name in PUBLIC_MODULES))
    public |= set(holdfast.client.__all__)
    return re.sub(r"(?<![\w<])_?[A-Z]\w*", lambda it: it[0] if it[0] in public else _INTERNAL, text)


def _golden_files() -> dict[str, str]:
    """Return the SHA-256 of each golden file, under its path behind the golden folder."""
    found = {}
    for path in sorted((ROOT / "tests").rglob("*")):
        parts = path.relative_to(ROOT).parts
        folder = next((i for i, part in enumerate(parts) if part.startswith("golden")), None)
        if folder is None or path.suffix == ".py" or not path.is_file() or path == SNAPSHOT:
            continue
        if "__pycache__" not in parts:
            name = "/".join(parts[folder:])
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


if __name__ == "__main__":
    text = as_text(contract())
    if "--write" in sys.argv:
        SNAPSHOT.write_text(text)
    else:
        sys.stdout.write(text)
