"""The configuration reference, docs/configuration.md, written from the declarations."""

from itertools import groupby

from holdfast.config import Key, keys

_HEAD = """\
# Configuration

This page is written by `make docs` from the declarations in the code; a test holds it current.

Every key has a default and can be set in three ways, the later winning:

1. in a TOML file, named by `holdfast serve --config FILE` or by `HOLDFAST_CONFIG`,
2. in the environment,
3. as a flag of `holdfast serve`.

A key's name follows from its section. `segment_bytes` in `[commitlog]` is

```toml
[commitlog]
segment_bytes = "256MiB"
```

or `HOLDFAST_COMMITLOG_SEGMENT_BYTES=256MiB`, or `--commitlog-segment-bytes 256MiB`.

Sizes (names that end in `_bytes`) are whole numbers of bytes, or end in `KiB`, `MiB`, `GiB` or
`TiB`. Times (names that end in `_ms`) are whole milliseconds. A key that does not exist and a
value out of bounds are errors that name the key, what was found and what is allowed; the broker
then does not start. `holdfast config show` prints every key, its value and where that came from.

`--host` and `--port` are short for `--http-api-host` and `--http-api-port`. `HOLDFAST_URL` and
`HOLDFAST_TOKEN` are not the broker's: they belong to the commands that talk to one, see
[cli.md](cli.md).
"""

_TABLE_HEAD = "| key | default | allowed | what it does |\n|---|---|---|---|\n"


def reference() -> str:
    """Return the whole page, in Markdown."""
    page = _HEAD
    for section, members in groupby(keys(), key=lambda key: key.section):
        title = f"`[{section}]`" if section else "Outside any section"
        page += f"\n## {title}\n\n{_TABLE_HEAD}" + "".join(map(_row, members))
    return page


def _row(key: Key) -> str:
    return f"| `{key.field.name}` | `{key.shown_default}` | {key.allowed} | {key.doc} |\n"
