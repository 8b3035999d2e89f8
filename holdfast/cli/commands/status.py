"""holdfast status and holdfast top: show whether all is well, once or repeatedly."""

import sys
from typing import TYPE_CHECKING

import click

from holdfast.cli.commands.status_view import show_status, show_top
from holdfast.cli.exits import ExitCode
from holdfast.cli.input.connection import with_client
from holdfast.cli.input.values import as_span
from holdfast.cli.output.terminal import is_terminal, write_json_line

if TYPE_CHECKING:
    from holdfast.client import Client


@click.command()
@with_client
def status(client: "Client") -> None:
    """Show the health of a broker on one screen.

    The screen shows problems, disk, topics, and the lag of groups. The exit code is 1 if there is a
    problem. If the broker requires tokens, a token that grants operate is needed for the numbers.
    """
    from holdfast.cli.commands.broker_status import read_status

    found = read_status(client)
    if is_terminal():
        show_status(found)
    else:
        write_json_line(found.as_row())
    if not found.is_well:
        raise click.exceptions.Exit(ExitCode.FAILED)


@click.command()
@click.option(
    "--interval",
    "interval_ms",
    callback=as_span(100, unit="s"),
    default="2s",
    show_default=True,
    metavar="TIME",
    help="Time between updates: 2s, 500ms, or seconds.",
)
@with_client
def top(client: "Client", interval_ms: int) -> None:
    """Show topic rates and group lag until Ctrl-C.

    If the output is not a terminal, one snapshot is printed as JSON, as status prints it.
    """
    from time import sleep

    from holdfast.cli.commands.broker_status import read_status

    before = read_status(client)
    if not is_terminal():
        write_json_line(before.as_row())
        return
    show_top(before, None)
    while True:
        sys.stdout.flush()
        sleep(interval_ms / 1000)
        now = read_status(client)
        click.clear()
        show_top(now, before)
        before = now
