"""The broker's configuration: every key, the source of its value, and one object with all values.

There are four sources: the defaults of the dataclasses, a TOML file, the environment, and flags. A
later source of this list overrides the earlier ones. A key is declared once, as a field made by
`commitlog.setting`. Its four names follow from section and field: `segment_bytes` in `[commitlog]`,
HOLDFAST_COMMITLOG_SEGMENT_BYTES, `--commitlog-segment-bytes`, and `commitlog.segment_bytes` in
messages. `holdfast.cli.output.config_reference` generates a page from the same declarations.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

from holdfast.amqp.config import AmqpConfig
from holdfast.commitlog.config import CommitLogConfig
from holdfast.commitlog.setting import setting
from holdfast.consumequeue.config import ConsumeQueueConfig, TopicsConfig
from holdfast.groups.config import GroupsConfig
from holdfast.holdservice.config import HoldServiceConfig
from holdfast.http_api.access.config import AccessConfig
from holdfast.http_api.config import ConsoleConfig, HttpConfig
from holdfast.units import format_size, parse_size, parse_span_ms, parse_whole_number

ENVIRONMENT_PREFIX = "HOLDFAST_"

#: Variables with the prefix that are options of the command line, not keys of the broker.
_COMMAND_LINE_VARIABLES = {
    "HOLDFAST_URL",
    "HOLDFAST_TOKEN",
    "HOLDFAST_TOKEN_FILE",
    "HOLDFAST_CONFIG",
    "HOLDFAST_TLS_CA_FILE",
    "HOLDFAST_TLS_CERT",
    "HOLDFAST_TLS_KEY",
    # The former names of the three variables above.
    "HOLDFAST_CA_FILE",
    "HOLDFAST_CERT",
    "HOLDFAST_KEY",
}
#: A variable counts as a mistyped key if its similarity to the name of a key (difflib's ratio) is
#: at least this.
_MISTYPED = 0.8
#: Variables, as name=value, that Kubernetes sets in every pod if a service is named "holdfast".
_SERVICE_LINK = re.compile(r"HOLDFAST_(SERVICE_(HOST|PORT.*)=.*|PORT_.*|PORT=\w+://.*)")

_BOOLEANS = {"true": True, "yes": True, "on": True, "1": True} | {
    "false": False, "no": False, "off": False, "0": False
}  # fmt: skip

#: Pairs of keys. The first value must not exceed the second: a default must be within its limit.
_ORDERED = (
    ("http_api.default_pull_messages", "http_api.max_pull_messages"),
    ("http_api.default_pull_bytes", "http_api.max_pull_bytes"),
    ("http_api.page_size", "http_api.max_page_size"),
    ("topics.default_queues", "topics.max_queues_per_topic"),
    ("topics.default_max_message_bytes", "http_api.max_request_bytes"),
)


@dataclass(frozen=True, slots=True)
class Config:
    """The whole configuration of a broker. It is immutable, and each part of the broker gets only
    its own section."""

    data_dir: Path = setting(  # noqa: RUF009 - a Path is immutable
        Path("holdfast-data"), "Directory for all data of the broker."
    )
    log_format: str = setting(
        "text", "Format of the log lines on standard error.", choices=("text", "json")
    )
    log_level: str = setting(
        "info",
        "Lowest level of the log lines that are written.",
        choices=("debug", "info", "warning", "error"),
    )
    max_memory_bytes: int = setting(
        0,
        "Memory of the process above which a publish is refused (503). 0: 80 % of the memory that "
        "the machine, the cgroup or an address space limit allows.",
        minimum=0,
    )
    commitlog: CommitLogConfig = field(default_factory=CommitLogConfig)
    consumequeue: ConsumeQueueConfig = field(default_factory=ConsumeQueueConfig)
    topics: TopicsConfig = field(default_factory=TopicsConfig)
    groups: GroupsConfig = field(default_factory=GroupsConfig)
    holdservice: HoldServiceConfig = field(default_factory=HoldServiceConfig)
    http_api: HttpConfig = field(default_factory=HttpConfig)
    amqp: AmqpConfig = field(default_factory=AmqpConfig)
    access: AccessConfig = field(default_factory=AccessConfig)
    console: ConsoleConfig = field(default_factory=ConsoleConfig)


class ConfigError(Exception):
    """The configuration cannot be used. Nothing was started. The fields of an error are its
    `args`."""

    def __post_init__(self) -> None:
        self.args = tuple(self.__dict__.values())


@dataclass(eq=False, repr=False)
class UnknownKey(ConfigError):
    """A key that does not exist. `nearest` is the most similar known key, None if no key is
    similar."""

    key: str
    source: str
    nearest: str | None

    def __str__(self) -> str:
        hint = f"did you mean {self.nearest}?" if self.nearest else "see 'holdfast config show'"
        return f"{self.source}: there is no key {self.key}; {hint}"


@dataclass(eq=False, repr=False)
class InvalidValue(ConfigError):
    """A value that its key does not allow; `allowed` describes the allowed values."""

    key: str
    found: object
    allowed: str
    source: str

    def __str__(self) -> str:
        return f"{self.source}: {self.key} is {self.found!r}; allowed: {self.allowed}"


@dataclass(eq=False, repr=False)
class UnreadableFile(ConfigError):
    """A configuration file that cannot be read or is not valid TOML."""

    file: Path
    cause: str

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
        """The name in messages: section and field joined by a dot."""
        return f"{self.section}.{self.field.name}" if self.section else self.field.name

    @property
    def variable(self) -> str:
        """The name of the environment variable."""
        return ENVIRONMENT_PREFIX + self.name.replace(".", "_").upper()

    @property
    def flag(self) -> str:
        """The name of the flag of `holdfast serve`."""
        return "--" + self.name.replace(".", "-").replace("_", "-")

    @property
    def default(self) -> Any:
        return self.field.default

    @property
    def shown_default(self) -> str:
        """The default as a user would write it."""
        return self.shown(self.default)

    def shown(self, value: Any) -> str:
        """Return a value of this key as a user would write it."""
        if self.type is bool:
            return str(value).lower()
        if value == "":
            return "none"
        return format_size(value) if self.is_size and value else str(value)

    @property
    def doc(self) -> str:
        """The description of the key, one or more sentences."""
        return str(self.field.metadata["doc"])

    @property
    def is_size(self) -> bool:
        """Whether the value is a number of bytes, so that texts like 16MiB are accepted."""
        return self.type is int and self.field.name.endswith("_bytes")

    @property
    def is_span(self) -> bool:
        """Whether the value is a duration, so that texts like 90s are accepted."""
        return self.type is int and self.field.name.endswith("_ms")

    @property
    def allowed(self) -> str:
        """The allowed values, in words."""
        if self.field.metadata["form"]:
            return str(self.field.metadata["form"][1])
        if self.field.metadata["choices"]:
            return " or ".join(self.field.metadata["choices"])
        if self.type is bool:
            return "true or false"
        if self.type is not int:
            return "a path" if self.type is Path else "a text"
        show: Callable[[int], str] = str
        kind = "a whole number"
        if self.is_size:
            show, kind = format_size, "a size such as 16MiB"
        if self.is_span:
            show, kind = "{} ms".format, "a time such as 90s"
        low, high = self.field.metadata["minimum"], self.field.metadata["maximum"]
        least = show(low) if low else "0"
        if low is not None and high is not None:
            return f"{kind}, {least} to {show(high)}"
        return f"{kind}, at least {least}" if low is not None else kind

    def parse(self, found: object, source: str) -> Any:
        """Return `found` (a TOML value or a text) as this key's type.

        Raise InvalidValue if `found` has another type or is out of bounds.
        """
        value = self._convert(found)
        minimum, maximum = self.field.metadata["minimum"], self.field.metadata["maximum"]
        choices, form = self.field.metadata["choices"], self.field.metadata["form"]
        if (
            value is None
            or (minimum is not None and value < minimum)
            or (maximum is not None and value > maximum)
            or (choices is not None and value not in choices)
            or (form is not None and re.fullmatch(form[0], value) is None)
        ):
            raise InvalidValue(self.name, found, self.allowed, source)
        return value

    def _convert(self, found: object) -> Any:
        """Return `found` as this key's type, None if it cannot be converted."""
        if self.type is bool:
            return found if isinstance(found, bool) else _BOOLEANS.get(str(found).lower())
        if self.type is int:
            if self.is_span:
                return parse_span_ms(found)
            return parse_size(found) if self.is_size else parse_whole_number(found)
        if not isinstance(found, str) or not (found or self.default == ""):
            return None
        return self.type(found)


@dataclass(frozen=True, slots=True)
class Resolved:
    """The final value of one key, and the source of this value ("default" if no source sets it)."""

    key: Key
    value: Any
    source: str


@cache
def keys() -> tuple[Key, ...]:
    """Return all keys in the order of their declarations."""
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
    *,
    file: Path | None,
    environ: Mapping[str, str],
    flags: Mapping[str, object],
    memory_bytes: int | None = None,
) -> Config:
    """Return the configuration from all sources: a flag overrides the environment, and the
    environment overrides the file.

    `flags` maps names of keys ("commitlog.segment_bytes") to values. `memory_bytes` is the memory
    that the process may use: if it is small, defaults that depend on memory are reduced. Raise
    ConfigError for a file that cannot be read, a key that does not exist, or a value that its key
    does not allow.
    """
    return _compose(resolve(file=file, environ=environ, flags=flags, memory_bytes=memory_bytes))


def resolve(
    *,
    file: Path | None,
    environ: Mapping[str, str],
    flags: Mapping[str, object],
    memory_bytes: int | None = None,
) -> list[Resolved]:
    """Return every key's value and source, in the order of `keys()`. Raise what `load_config`
    raises."""
    known = {key.name: key for key in keys()}
    values = {key.name: _default_of(key, memory_bytes) for key in keys()}
    for given in (_from_file(file) if file else [], _from_environment(environ), _from_flags(flags)):
        for name, found, source in given:
            key = known.get(name)
            if key is None:
                raise UnknownKey(name, source, _nearest(name, known))
            values[name] = Resolved(key, key.parse(found, source), source)
    for smaller, larger in _ORDERED:
        if values[smaller].value > values[larger].value and values[larger].source == _BY_MEMORY:
            # A value that was set has priority over a default that was reduced for lack of memory.
            value = min(values[smaller].value, known[larger].default)
            values[larger] = Resolved(known[larger], value, _BY_MEMORY)
        if values[smaller].value > values[larger].value:
            raise InvalidValue(
                smaller,
                values[smaller].value,
                f"at most {larger} ({values[larger].value})",
                values[smaller].source,
            )
    return list(values.values())


#: The source of a default that was reduced for lack of memory.
_BY_MEMORY = "default for this much memory"


def _default_of(key: Key, memory_bytes: int | None) -> Resolved:
    """Return the value of a key that no source sets."""
    divisor = key.field.metadata["memory_divisor"]
    if memory_bytes is not None and divisor is not None:
        least = max(key.field.metadata["minimum"] or 0, 1)
        value = max(memory_bytes // divisor // key.field.metadata["bytes_each"], least)
        if value < key.default:
            return Resolved(key, value, _BY_MEMORY)
    return Resolved(key, key.default, "default")


def changed_keys(config: Config) -> dict[str, object]:
    """Return the values that differ from their defaults, by key name."""
    values = {
        key.name: getattr(getattr(config, key.section) if key.section else config, key.field.name)
        for key in keys()
    }
    return {key.name: values[key.name] for key in keys() if values[key.name] != key.default}


def _compose(resolved: list[Resolved]) -> Config:
    sections: dict[str, dict[str, Any]] = {}
    for each in resolved:
        sections.setdefault(each.key.section, {})[each.key.field.name] = each.value
    top = sections.pop("")
    types = get_type_hints(Config)
    return Config(**top, **{name: types[name](**values) for name, values in sections.items()})


_Given = list[tuple[str, object, str]]  # (key's name, value found, source)


def _from_file(file: Path) -> _Given:
    import tomllib  # late, because most starts have no file

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
        elif not _is_service_link(variable, value) and _is_meant_as_key(variable):
            raise UnknownKey(variable, "environment", _nearest(variable, by_variable))
    return given


def unused_variables(environ: Mapping[str, str]) -> list[str]:
    """Return the variables with the broker's prefix that are not keys, and are not similar to a
    key. They may belong to other programs, for example HOLDFAST_VERSION."""
    by_variable = {key.variable for key in keys()}
    return [
        variable
        for variable, value in environ.items()
        if variable.startswith(ENVIRONMENT_PREFIX)
        and variable not in by_variable
        and variable not in _COMMAND_LINE_VARIABLES
        and not _is_service_link(variable, value)
        and not _is_meant_as_key(variable)
    ]


def _is_service_link(variable: str, value: str) -> bool:
    return _SERVICE_LINK.fullmatch(f"{variable}={value}") is not None


def _is_meant_as_key(variable: str) -> bool:
    """Return whether this variable was probably meant as a key: after the prefix, it begins with a
    section's name, is a key's name without the section, or is spelled almost like a key."""
    name = variable.removeprefix(ENVIRONMENT_PREFIX)
    if any(key.section and name.startswith(f"{key.section.upper()}_") for key in keys()):
        return True
    if any(key.field.name.upper() == name for key in keys()):
        return True
    names = [key.variable.removeprefix(ENVIRONMENT_PREFIX) for key in keys()]
    return bool(_close_matches(name, names, _MISTYPED))


def _from_flags(flags: Mapping[str, object]) -> _Given:
    names = {key.name: key.flag for key in keys()}
    return [(name, found, f"flag {names.get(name, name)}") for name, found in flags.items()]


def _nearest(name: str, known: Mapping[str, object]) -> str | None:
    """Return the known name that was probably meant, None if there is no similar name. If `name`
    is a known name without its section, return that known name."""
    without_section = f"_{name.removeprefix(ENVIRONMENT_PREFIX)}"
    for candidate in known:
        if candidate.endswith((f".{name}", without_section)):
            return candidate
    return next(iter(_close_matches(name, known)), None)


def _close_matches(name: str, known: Iterable[str], cutoff: float = 0.6) -> list[str]:
    from difflib import get_close_matches  # late, because only mistakes need it

    return get_close_matches(name, known, n=1, cutoff=cutoff)
