"""Generates the configuration reference, docs/configuration.md, from the declarations."""

from itertools import groupby

from holdfast.config import Key, keys
from holdfast.units import format_size

_HEAD = """\
# Configuration

`make docs` generates this page from the declarations in the code. A test checks that it is
up to date.

Every key has a default. It can be set in three ways; later ones override earlier ones:

1. in a TOML file, given by `holdfast serve --config FILE` or by `HOLDFAST_CONFIG`,
2. in the environment,
3. as a flag of `holdfast serve`.

The names of a key follow from its section. `segment_bytes` in `[commitlog]` is

```toml
[commitlog]
segment_bytes = "256MiB"
```

or `HOLDFAST_COMMITLOG_SEGMENT_BYTES=256MiB`, or `--commitlog-segment-bytes 256MiB`.

A size (a name that ends in `_bytes`) is a whole number of bytes, or a number with `B`, `KiB`,
`MiB`, `GiB` or `TiB`. A time (a name that ends in `_ms`) is a whole number of milliseconds, or a
number with `ms`, `s`, `m`, `h`, `d` or `w`: `90s`, `7d`. An unknown key and a value out of bounds
are errors, and the broker does not start. The error shows the key, the value and the allowed
values. `holdfast config show` prints every key with its value and the source of the value.

Some defaults are smaller if the process may use little memory. The available memory is that of the
machine or that of the process's cgroup, whichever is less. A value that you set is never reduced.

An environment variable that begins with `HOLDFAST_` is treated as a key if it begins with a
section's name, is a key's name without the section, or is spelled almost like a key. It is an error
if there is no such key. The broker ignores all other variables, such as `HOLDFAST_VERSION`, with a
warning.

`--host` and `--port` are short for `--http-api-host` and `--http-api-port`. `HOLDFAST_URL`,
`HOLDFAST_TOKEN`, `HOLDFAST_TOKEN_FILE` and `HOLDFAST_TLS_*` do not configure the broker. They are
options of the commands that connect to a broker, see [cli.md](cli.md).
"""

_TABLE_HEAD = "| key | default | allowed | what it does |\n|---|---|---|---|\n"


def reference() -> str:
    page = _HEAD
    for section, members in groupby(keys(), key=lambda key: key.section):
        title = f"`[{section}]`" if section else "Outside any section"
        page += f"\n## {title}\n\n{_TABLE_HEAD}" + "".join(map(_row, members))
    return page


def _row(key: Key) -> str:
    default = f"`{key.shown_default}`"
    divisor, bytes_each = (key.field.metadata[name] for name in ("memory_divisor", "bytes_each"))
    if divisor is not None and bytes_each == 1:
        default += f", or 1/{divisor} of the memory if that is less"
    elif divisor is not None:
        default += (
            f", or one for each {format_size(divisor * bytes_each)} of memory if that is less"
        )
    return f"| `{key.field.name}` | {default} | {key.allowed} | {key.doc} |\n"
