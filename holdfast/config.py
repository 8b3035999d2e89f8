"""The broker's configuration: every key, where its value came from, and the whole as one value.

Sources in rising order: the defaults of the dataclasses, a TOML file, the environment, flags.
A key is declared once, as a field made by `commitlog.setting`; its four names follow from the
section and the field: `segment_bytes` in `[commitlog]`, HOLDFAST_COMMITLOG_SEGMENT_BYTES,
`--commitlog-segment-bytes`, and `commitlog.segment_bytes` in messages. `holdfast.config_reference`
writes the same declarations as a page.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

from holdfast.commitlog.config import CommitLogConfig
from holdfast.commitlog.setting import KIB, MIB, setting
from holdfast.consumequeue.config import ConsumeQueueConfig, TopicsConfig
from holdfast.groups.config import GroupsConfig
from holdfast.holdservice.config import HoldServiceConfig
from holdfast.http_api.access.config import AccessConfig
from holdfast.http_api.config import HttpConfig

ENVIRONMENT_PREFIX = "HOLDFAST_"

#: Names under the prefix that are not the broker's: the command line's own options.
_COMMAND_LINE_VARIABLES = {
    "HOLDFAST_URL",
    "HOLDFAST_TOKEN",
    "HOLDFAST_TOKEN_FILE",
    "HOLDFAST_CONFIG",
    "HOLDFAST_CA_FILE",
    "HOLDFAST_CERT",
    "HOLDFAST_KEY",
}
#: Kubernetes sets these in every pod beside a service that is called "holdfast": name=value.
_SERVICE_LINK = re.compile(r"HOLDFAST_(SERVICE_(HOST|PORT.*)=.*|PORT_.*|PORT=\w+://.*)")

_SIZE = re.compile(r"(\d{1,9}) ?(KiB|MiB|GiB|TiB)", re.IGNORECASE | re.ASCII)
_UNITS = {"kib": KIB, "mib": MIB, "gib": 1024 * MIB, "tib": 1024 * 1024 * MIB}
_BOOLEANS = {"true": True, "yes": True, "on": True, "1": True} | {
    "false": False, "no": False, "off": False, "0": False
}  # fmt: skip

#: The first may not exceed the second: a value that a request gets unasked must be allowed.
_ORDERED = (
    ("http_api.default_pull_messages", "http_api.max_pull_messages"),
    ("http_api.default_pull_bytes", "http_api.max_pull_bytes"),
    ("http_api.page_size", "http_api.max_page_size"),
    ("topics.default_queues", "topics.max_queues_per_topic"),
    ("topics.default_max_message_bytes", "http_api.max_request_bytes"),
)


@dataclass(frozen=True, slots=True)
class Config:
    """Everything that a broker is told. Immutable; parts are handed their section."""

    data_dir: Path = setting(  # noqa: RUF009 - a Path is immutable
        Path("holdfast-data"), "Folder that holds everything the broker keeps."
    )
    log_format: str = setting(
        "text", "Form of the log lines on standard error.", choices=("text", "json")
    )
    log_level: str = setting(
        "info", "Least urgent log lines to write.", choices=("debug", "info", "warning", "error")
    )
    max_memory_bytes: int = setting(
        0,
        "Memory of the process above which publishing is refused (503). 0: 80 % of what the "
        "machine, the cgroup or a limit on address space allows.",
        minimum=0,
    )
    commitlog: CommitLogConfig = field(default_factory=CommitLogConfig)
    consumequeue: ConsumeQueueConfig = field(default_factory=ConsumeQueueConfig)
    topics: TopicsConfig = field(default_factory=TopicsConfig)
    groups: GroupsConfig = field(default_factory=GroupsConfig)
    holdservice: HoldServiceConfig = field(default_factory=HoldServiceConfig)
    http_api: HttpConfig = field(default_factory=HttpConfig)
    access: AccessConfig = field(default_factory=AccessConfig)


class ConfigError(Exception):
    """A configuration that cannot be used. Nothing was started."""


class UnknownKey(ConfigError):
    """A key that does not exist; `nearest` is the known one most like it, where one is."""

    def __init__(self, key: str, source: str, nearest: str | None) -> None:
        super().__init__(key, source, nearest)
        self.key = key
        self.source = source
        self.nearest = nearest

    def __str__(self) -> str:
        hint = f"did you mean {self.nearest}?" if self.nearest else "see 'holdfast config show'"
        return f"{self.source}: there is no key {self.key}; {hint}"


class InvalidValue(ConfigError):
    """A value that its key does not take; `allowed` says which it does."""

    def __init__(self, key: str, found: object, allowed: str, source: str) -> None:
        super().__init__(key, found, allowed, source)
        self.key = key
        self.found = found
        self.allowed = allowed
        self.source = source

    def __str__(self) -> str:
        return f"{self.source}: {self.key} is {self.found!r}; allowed: {self.allowed}"


class UnreadableFile(ConfigError):
    """A configuration file that cannot be read, or is no TOML."""

    def __init__(self, file: Path, cause: str) -> None:
        super().__init__(file, cause)
        self.file = file
        self.cause = cause

    def __str__(self) -> str:
        return f"{self.file}: {self.cause}; it must be a readable TOML file"


@dataclass(frozen=True, slots=True)
class Key:
    """One configuration key, as declared. `section` is empty for keys outside any section."""

    section: str
    field: Field[Any]
    type: type

    @property
    def name(self) -> str:
        """Its name in messages: section and field joined by a point."""
        return f"{self.section}.{self.field.name}" if self.section else self.field.name

    @property
    def variable(self) -> str:
        """Its name in the environment."""
        return ENVIRONMENT_PREFIX + self.name.replace(".", "_").upper()

    @property
    def flag(self) -> str:
        """Its name as a flag of `holdfast serve`."""
        return "--" + self.name.replace(".", "-").replace("_", "-")

    @property
    def default(self) -> Any:
        """Its value when no source gives one."""
        return self.field.default

    @property
    def shown_default(self) -> str:
        """Its default as one would write it."""
        if self.type is bool:
            return str(self.default).lower()
        if self.default == "":
            return "none"
        return format_size(self.default) if self.is_size else str(self.default)

    @property
    def doc(self) -> str:
        """What it does, in a sentence or two."""
        return str(self.field.metadata["doc"])

    @property
    def is_size(self) -> bool:
        """Whether it counts bytes, so that texts like 16MiB are taken."""
        return self.type is int and self.field.name.endswith("_bytes")

    @property
    def allowed(self) -> str:
        """Which values it takes, in words."""
        if self.field.metadata["choices"]:
            return " or ".join(self.field.metadata["choices"])
        if self.type is bool:
            return "true or false"
        if self.type is not int:
            return "a path" if self.type is Path else "a text"
        show = format_size if self.is_size else str
        minimum, maximum = self.field.metadata["minimum"], self.field.metadata["maximum"]
        kind = "a size such as 16MiB" if self.is_size else "a whole number"
        if minimum is not None and maximum is not None:
            return f"{kind}, {show(minimum)} to {show(maximum)}"
        return f"{kind}, at least {show(minimum)}" if minimum is not None else kind

    def parse(self, found: object, source: str) -> Any:
        """Return `found` (a TOML value, or a text) as this key's type.

        Raises InvalidValue when it is of another kind or outside the bounds.
        """
        value = self._converted(found)
        minimum, maximum = self.field.metadata["minimum"], self.field.metadata["maximum"]
        choices = self.field.metadata["choices"]
        if (
            value is None
            or (minimum is not None and value < minimum)
            or (maximum is not None and value > maximum)
            or (choices is not None and value not in choices)
        ):
            raise InvalidValue(self.name, found, self.allowed, source)
        return value

    def _converted(self, found: object) -> Any:
        """Return `found` as this key's type, None when it is not of it."""
        if self.type is bool:
            return found if isinstance(found, bool) else _BOOLEANS.get(str(found).lower())
        if self.type is int:
            return parse_size(found) if self.is_size else _whole_number(found)
        if not isinstance(found, str) or not (found or self.default == ""):
            return None
        return self.type(found)


@dataclass(frozen=True, slots=True)
class Resolved:
    """The value that one key ended up with, and who set it last ("default" when nobody did)."""

    key: Key
    value: Any
    source: str


@cache
def keys() -> tuple[Key, ...]:
    """Return every key there is, in the order of the declarations."""
    found = []
    sections = get_type_hints(Config)
    for item in fields(Config):
        if item.default is MISSING:
            section = sections[item.name]
            types = get_type_hints(section)
            found += [Key(item.name, each, types[each.name]) for each in fields(section)]
        else:
            found.append(Key("", item, sections[item.name]))
    return tuple(found)


def load_config(
    *, file: Path | None, environ: Mapping[str, str], flags: Mapping[str, object]
) -> Config:
    """Return the configuration that the sources give together, the later winning.

    `flags` goes by the keys' names ("commitlog.segment_bytes"). Raises ConfigError for a file
    that cannot be read, a key that does not exist and a value that its key does not take.
    """
    return _composed(resolve(file=file, environ=environ, flags=flags))


def resolve(
    *, file: Path | None, environ: Mapping[str, str], flags: Mapping[str, object]
) -> list[Resolved]:
    """Return every key's value and source, in the order of `keys()`. Raises as load_config."""
    known = {key.name: key for key in keys()}
    values = {key.name: Resolved(key, key.default, "default") for key in keys()}
    for given in (_from_file(file) if file else [], _from_environment(environ), _from_flags(flags)):
        for name, found, source in given:
            key = known.get(name)
            if key is None:
                raise UnknownKey(name, source, _nearest(name, known))
            values[name] = Resolved(key, key.parse(found, source), source)
    for smaller, larger in _ORDERED:
        if values[smaller].value > values[larger].value:
            raise InvalidValue(
                smaller,
                values[smaller].value,
                f"at most {larger} ({values[larger].value})",
                values[smaller].source,
            )
    return list(values.values())


def changed_keys(config: Config) -> dict[str, object]:
    """Return the values that differ from their defaults, by their keys' names."""
    values = {
        key.name: getattr(getattr(config, key.section) if key.section else config, key.field.name)
        for key in keys()
    }
    return {key.name: values[key.name] for key in keys() if values[key.name] != key.default}


def parse_size(found: object) -> int | None:
    """Return a number of bytes, given as such or as a text like 16MiB; None for anything else."""
    matched = _SIZE.fullmatch(found) if isinstance(found, str) else None
    if matched is None:
        return _whole_number(found)
    return int(matched[1]) * _UNITS[matched[2].lower()]


def format_size(size: int) -> str:
    """Return a number of bytes in the largest unit that divides it: 16 MiB."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        factor = _UNITS[unit.lower()]
        if size >= factor and size % factor == 0:
            return f"{size // factor} {unit}"
    return str(size)


def _composed(resolved: list[Resolved]) -> Config:
    sections: dict[str, dict[str, Any]] = {}
    for each in resolved:
        sections.setdefault(each.key.section, {})[each.key.field.name] = each.value
    top = sections.pop("")
    types = get_type_hints(Config)
    return Config(**top, **{name: types[name](**values) for name, values in sections.items()})


_Given = list[tuple[str, object, str]]  # (key's name, value found, source)


def _from_file(file: Path) -> _Given:
    try:
        document = tomllib.loads(file.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        cause = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UnreadableFile(file, cause) from error
    given: _Given = []
    for name, value in document.items():
        if isinstance(value, dict):
            given += [(f"{name}.{inner}", item, str(file)) for inner, item in value.items()]
        else:
            given.append((name, value, str(file)))
    return given


def _from_environment(environ: Mapping[str, str]) -> _Given:
    by_variable = {key.variable: key for key in keys()}
    given: _Given = []
    for variable, value in environ.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in _COMMAND_LINE_VARIABLES:
            continue
        key = by_variable.get(variable)
        if key is not None:
            given.append((key.name, value, f"environment variable {variable}"))
        elif not _SERVICE_LINK.fullmatch(f"{variable}={value}"):
            raise UnknownKey(variable, "environment", _nearest(variable, by_variable))
    return given


def _from_flags(flags: Mapping[str, object]) -> _Given:
    names = {key.name: key.flag for key in keys()}
    return [(name, found, f"flag {names.get(name, name)}") for name, found in flags.items()]


def _whole_number(found: object) -> int | None:
    if isinstance(found, str):
        return int(found) if re.fullmatch(r"\d{1,18}", found, re.ASCII) else None
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def _nearest(name: str, known: Mapping[str, object]) -> str | None:
    """Return the known name most like this one; without its section, if that is what misses."""
    without_section = f"_{name.removeprefix(ENVIRONMENT_PREFIX)}"
    for candidate in known:
        if candidate.endswith((f".{name}", without_section)):
            return candidate
    return next(iter(get_close_matches(name, known, n=1)), None)
