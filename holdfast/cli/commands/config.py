"""holdfast config: show the settings that a broker started here would use, or describe all."""

import os
from pathlib import Path

import click

from holdfast.cli.output.terminal import is_terminal, write_rows, write_table
from holdfast.config import resolve, unused_variables

config_option = click.option(
    "--config",
    "config_file",
    envvar="HOLDFAST_CONFIG",
    show_envvar=True,
    type=click.Path(path_type=Path),
    help="TOML file with the broker's settings.",
)


@click.group()
def config() -> None:
    """Show a broker's settings."""


@config.command("show")
@config_option
def show(config_file: Path | None) -> None:
    """Print every setting, its value, and where the value comes from.

    `holdfast serve` would use these values if it were started here. The file overrides the
    defaults, and the environment overrides the file.
    """
    from holdfast.storage.machine_memory import machine_bytes

    resolved = resolve(file=config_file, environ=os.environ, flags={}, memory_bytes=machine_bytes())
    for variable in unused_variables(os.environ):
        click.echo(f"note: {variable} is not a setting", err=True)
    rows = [
        {
            "key": each.key.name,
            "value": str(each.value) if isinstance(each.value, Path) else each.value,
            "source": each.source,
        }
        for each in resolved
    ]
    if not is_terminal():
        write_rows(rows, ["key", "value", "source"])
        return
    for row, each in zip(rows, resolved, strict=True):
        row["value"] = each.key.shown(each.value)
    write_table(rows, ["key", "value", "source"])


@config.command("reference")
def reference() -> None:
    """Print a Markdown page that documents every setting."""
    from holdfast.cli.output.config_reference import reference as page

    click.echo(page(), nl=False)
