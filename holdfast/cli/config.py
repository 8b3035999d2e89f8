"""holdfast config: what a broker started here would be told, and what it can be told."""

import os
from pathlib import Path

import click

from holdfast.cli.output import write_rows
from holdfast.config import resolve


def config_option(command: click.decorators.FC) -> click.decorators.FC:
    """Give a command the option --config."""
    return click.option(
        "--config",
        "config_file",
        envvar="HOLDFAST_CONFIG",
        show_envvar=True,
        type=click.Path(path_type=Path),
        help="TOML file with the broker's settings.",
    )(command)


@click.group()
def config() -> None:
    """See the broker's configuration."""


@config.command("show")
@config_option
def show(config_file: Path | None) -> None:
    """Print every key, its value and where that comes from.

    This is what `holdfast serve` would use here: defaults, the file, then the environment.
    """
    resolved = resolve(file=config_file, environ=os.environ, flags={})
    rows = [
        {
            "key": each.key.name,
            "value": str(each.value) if isinstance(each.value, Path) else each.value,
            "source": each.source,
        }
        for each in resolved
    ]
    write_rows(rows, ["key", "value", "source"])


@config.command("reference")
def reference() -> None:
    """Print the page that documents every key, in Markdown."""
    from holdfast.config_reference import reference as page

    click.echo(page(), nl=False)
