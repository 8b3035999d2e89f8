"""Sources of configuration values, which values are accepted, and the errors for the others."""

import re
from pathlib import Path

import pytest

from holdfast.cli.output.config_reference import reference
from holdfast.config import (
    Config,
    ConfigError,
    InvalidValue,
    UnknownKey,
    UnreadableFile,
    keys,
    load_config,
    resolve,
    unused_variables,
)

MIB = 1024 * 1024


def load(
    toml: str | None = None,
    *,
    folder: Path | None = None,
    environ: dict[str, str] | None = None,
    flags: dict[str, object] | None = None,
) -> Config:
    file = None
    if toml is not None:
        assert folder is not None
        file = folder / "holdfast.toml"
        file.write_text(toml)
    return load_config(file=file, environ=environ or {}, flags=flags or {})


def test_without_sources_everything_has_its_default() -> None:
    assert load() == Config()


def test_later_sources_win(tmp_path: Path) -> None:
    toml = "[commitlog]\nsegment_bytes = 1048576\nflush_interval_ms = 1\nmax_producers = 1\n"
    config = load(
        toml,
        folder=tmp_path,
        environ={
            "HOLDFAST_COMMITLOG_FLUSH_INTERVAL_MS": "2",
            "HOLDFAST_COMMITLOG_MAX_PRODUCERS": "2",
        },
        flags={"commitlog.max_producers": "3"},
    )
    assert config.commitlog.segment_bytes == MIB
    assert config.commitlog.flush_interval_ms == 2
    assert config.commitlog.max_producers == 3


def test_each_value_names_its_source(tmp_path: Path) -> None:
    file = tmp_path / "h.toml"
    file.write_text('data_dir = "/d"\n')
    resolved = resolve(
        file=file, environ={"HOLDFAST_LOG_LEVEL": "debug"}, flags={"http_api.port": "0"}
    )
    sources = {each.key.name: each.source for each in resolved if each.source != "default"}
    assert sources == {
        "data_dir": str(file),
        "log_level": "environment variable HOLDFAST_LOG_LEVEL",
        "http_api.port": "flag --http-api-port",
    }


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1048576", MIB),
        ("16MiB", 16 * MIB),
        ("16 mib", 16 * MIB),
        ("2GiB", 2048 * MIB),
        ("1TiB", MIB * MIB),
        ("2048KiB", 2 * MIB),
    ],
)
def test_sizes_take_units(text: str, size: int) -> None:
    assert load(flags={"commitlog.segment_bytes": text}).commitlog.segment_bytes == size


@pytest.mark.parametrize("word", ["false", "False", "no", "off", "0"])
def test_booleans_take_words(word: str) -> None:
    environ = {"HOLDFAST_TOPICS_AUTO_CREATE_TOPICS": word}
    assert load(environ=environ).topics.auto_create_topics is False


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("commitlog.segment_bytes", "1MB"),
        ("commitlog.segment_bytes", "-1"),
        ("commitlog.segment_bytes", "1048575"),
        ("commitlog.segment_bytes", ""),
        ("commitlog.segment_bytes", "9" * 5000),
        ("commitlog.segment_bytes", True),
        ("commitlog.segment_bytes", 1.5e9),
        ("commitlog.flush_interval_ms", "1KiB"),
        ("commitlog.flush_interval_ms", "0"),
        ("http_api.port", "65536"),
        ("http_api.host", 7),
        ("topics.auto_create_topics", "perhaps"),
        ("topics.default_durability", "sometimes"),
        ("topics.default_durability", ["fsync"]),
        ("data_dir", ""),
    ],
)
def test_invalid_values_are_refused(name: str, value: object) -> None:
    with pytest.raises(InvalidValue) as caught:
        load(flags={name: value})
    error = caught.value
    assert (error.key, error.found) == (name, value)
    allowed = next(key for key in keys() if key.name == name).allowed
    assert error.source.startswith("flag --")
    assert str(error) == f"{error.source}: {name} is {value!r}; allowed: {allowed}"


def test_bounds_are_inclusive() -> None:
    assert load(flags={"http_api.port": "65535"}).http_api.port == 65535
    assert load(flags={"http_api.port": "0"}).http_api.port == 0


def test_a_default_above_its_own_maximum_is_refused() -> None:
    with pytest.raises(InvalidValue, match=r"at most http_api.max_pull_messages \(10\)"):
        load(flags={"http_api.max_pull_messages": "10"})


@pytest.mark.parametrize(("more", "is_refused"), [(-1, False), (0, False), (1, True)])
def test_a_default_above_another_limit_is_refused(more: int, is_refused: bool) -> None:
    flags: dict[str, object] = {
        "http_api.max_request_bytes": "1MiB",
        "topics.default_max_message_bytes": str(1024 * 1024 + more),
    }
    if is_refused:
        with pytest.raises(InvalidValue, match=r"at most http_api.max_request_bytes \(1048576\)"):
            load(flags=flags)
    else:
        load(flags=flags)


def test_unknown_keys_name_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UnknownKey, match=r"did you mean commitlog.segment_bytes\?"):
        load("[commitlog]\nsegmnt_bytes = 1\n", folder=tmp_path)
    with pytest.raises(UnknownKey, match=r"did you mean http_api.port\?"):
        load("port = 1\n", folder=tmp_path)
    with pytest.raises(UnknownKey, match=r"did you mean HOLDFAST_DATA_DIR\?"):
        load(environ={"HOLDFAST_DATADIR": "/d"})
    with pytest.raises(UnknownKey, match="holdfast config show"):
        load("[zzz]\nqqq = 1\n", folder=tmp_path)
    with pytest.raises(UnknownKey, match=r"did you mean HOLDFAST_HTTP_API_PORT\?"):
        load(environ={"HOLDFAST_PORT": "9000"})
    with pytest.raises(UnknownKey, match=r"did you mean HOLDFAST_HTTP_API_HOST\?"):
        load(environ={"HOLDFAST_HOST": "0.0.0.0"})


def test_other_variables_are_ignored() -> None:
    environ = {
        "PATH": "/bin",
        "HOLDFAST_URL": "http://x",
        "HOLDFAST_TOKEN": "t",
        # Kubernetes sets these variables for a service called "holdfast".
        "HOLDFAST_SERVICE_HOST": "10.0.0.1",
        "HOLDFAST_SERVICE_PORT_HTTP": "8711",
        "HOLDFAST_PORT": "tcp://10.0.0.1:8711",
        "HOLDFAST_PORT_8711_TCP_ADDR": "10.0.0.1",
    }
    assert load(environ=environ) == Config()


@pytest.mark.parametrize("content", [b"[commitlog", b"\xff\xfe"])
def test_an_invalid_file_is_named(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "broken.toml"
    file.write_bytes(content)
    with pytest.raises(UnreadableFile, match=re.escape(str(file))):
        load_config(file=file, environ={}, flags={})


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file or directory"):
        load_config(file=tmp_path / "none.toml", environ={}, flags={})


def test_every_key_is_documented_and_unique() -> None:
    assert all(key.doc.endswith(".") for key in keys())
    for names in (
        [key.name for key in keys()],
        [key.variable for key in keys()],
        [key.flag for key in keys()],
    ):
        assert len(set(names)) == len(names)


def test_every_default_is_allowed() -> None:
    for key in keys():
        default = key.default if key.type in (int, bool) else str(key.default)
        assert key.parse(default, "default") == key.default


def test_the_reference_page_is_current() -> None:
    page = Path(__file__).parents[2] / "docs" / "configuration.md"
    assert page.read_text("utf-8") == reference(), "run 'make docs'"


# O7: HOLDFAST_VERSION=1 in the environment stopped the broker.
@pytest.mark.parametrize("variable", ["HOLDFAST_VERSION", "HOLDFAST_HOME", "HOLDFAST_IMAGE_TAG"])
def test_a_variable_unlike_any_key_is_ignored(variable: str) -> None:
    environ = {variable: "1", "PATH": "/bin", "HOLDFAST_URL": "http://h:1"}
    assert load_config(file=None, environ=environ, flags={}) == Config()
    assert unused_variables(environ) == [variable]


@pytest.mark.parametrize(
    "variable",
    [
        "HOLDFAST_HTTP_API_PROT",  # starts with a section's name
        "HOLDFAST_TOPICS_NONE_SUCH",
        "HOLDFAST_PORT",  # a key's name without its section
        "HOLDFAST_SEGMENT_BYTES",
        "HOLDFAST_DATADIR",  # spelled almost like a key
        "HOLDFAST_LOG_LEVELS",
    ],
)
def test_a_mistyped_variable_is_refused(variable: str) -> None:
    environ = {variable: "1"}
    with pytest.raises(UnknownKey, match=variable):
        load_config(file=None, environ=environ, flags={})
    assert unused_variables(environ) == []


# O6: --retention-ms 7d was refused where --ttl 30d worked.
@pytest.mark.parametrize(
    ("text", "span_ms"),
    [("250", 250), ("500ms", 500), ("90s", 90_000), ("3m", 180_000), ("7d", 604_800_000)],
)
def test_durations_take_units(text: str, span_ms: int) -> None:
    flags = {"http_api.max_wait_ms": text}
    assert load_config(file=None, environ={}, flags=flags).http_api.max_wait_ms == span_ms


# -- memory ----------------------------------------------------------------------------------


def with_memory(mib: int, **flags: object) -> Config:
    return load_config(file=None, environ={}, flags=flags, memory_bytes=mib * MIB)


def test_with_much_memory_defaults_stay() -> None:
    assert with_memory(32 * 1024) == Config()


@pytest.mark.parametrize("mib", [64, 256, 512, 1024])
def test_with_little_memory_some_defaults_are_smaller(mib: int) -> None:
    # M1: in a cgroup of 512 MiB, the budgets alone exceeded the memory
    config, memory = with_memory(mib), mib * MIB
    http_api = config.http_api
    assert http_api.max_arriving_bytes == min(memory // 8, 256 * MIB)
    assert http_api.max_client_arriving_bytes == min(memory // 16, 128 * MIB)
    assert http_api.max_unsent_bytes == min(memory // 8, 256 * MIB)
    assert http_api.max_connections == min(memory // 4 // (16 * 1024), 120_000)
    assert http_api.max_text_request_bytes == min(memory // 64, 16 * MIB)
    assert config.commitlog.max_in_flight_bytes == min(memory // 8, 128 * MIB)
    assert config.commitlog.max_producers == min(memory // 8 // 2048, 100_000)
    # S4: one group over topics of 90,000 queues took 485 MiB
    assert config.groups.max_cursors == min(memory // 4 // (6 * 1024), 1_000_000)
    assert config.groups.max_filter_characters == min(memory // 16 // 128, 4 * MIB)
    assert config.groups.max_groups == min(memory // 8 // (16 * 1024), 10_000)
    # S5: the leases of eight groups took 350 MiB
    assert config.groups.max_leases == min(memory // 8 // 512, 1_000_000)
    assert config.groups.max_returned == min(memory // 8 // 512, 1_000_000)
    assert config.groups.max_returned_per_group == min(memory // 32 // 512, 100_000)
    assert config.groups.max_members == min(memory // 16 // 512, 100_000)
    assert config.commitlog.max_producers >= 2 * config.commitlog.max_producers_per_client
    assert config.topics.default_max_message_bytes <= http_api.max_text_request_bytes


def test_set_values_do_not_depend_on_memory() -> None:
    config = with_memory(512, **{"http_api.max_arriving_bytes": "1GiB"})
    assert config.http_api.max_arriving_bytes == 1024 * MIB
    # A message that publish accepted must fit a request.
    config = with_memory(256, **{"topics.default_max_message_bytes": "12MiB"})
    assert config.http_api.max_request_bytes == 12 * MIB


def test_the_reference_names_defaults_that_depend_on_memory() -> None:
    page = reference()
    assert "| `max_arriving_bytes` | `256 MiB`, or 1/8 of the memory if that is less |" in page
    assert (
        "| `max_connections` | `120000`, or one for each 64 KiB of memory if that is less |" in page
    )
