"""holdfast status and top: show on one screen of 80 columns whether all is well."""

import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.commands.broker_status import (
    BrokerFigures,
    BrokerStatus,
    TopicStatus,
    read_status,
)
from holdfast.cli.exits import ExitCode
from holdfast.cli.input.connection import with_client
from holdfast.cli.input.values import as_span
from holdfast.cli.output.figures import (
    format_bytes,
    format_count,
    format_number,
    format_seconds,
    format_span,
)
from holdfast.cli.output.overview_view import Overview, overview_lines
from holdfast.cli.output.terminal import (
    Column,
    is_terminal,
    safe_text,
    write_json_line,
    write_table,
)

if TYPE_CHECKING:
    from holdfast.client import Client

#: At most this many topics and this many groups are shown, so that they fit on a screen.
_ROWS = 10

_GROUPS = (
    Column("group", "group"),
    Column("topic", "topic"),
    Column("lag_messages", "lag", format_number),
    Column("lag_seconds", "behind", format_seconds),
)
_TOPIC = (
    Column("topic", "topic"),
    Column("messages", "messages", format_number),
    Column("bytes", "size", format_bytes),
)
_TOPICS = (
    *_TOPIC,
    Column("oldest_seconds", "oldest", format_seconds),
    Column("messages_in", "in", format_number),
    Column("messages_out", "out", format_number),
)
_TOPIC_RATES = (
    *_TOPIC,
    Column("in_rate", "in /s", format_number),
    Column("out_rate", "out /s", format_number),
    Column("in_bytes_rate", "in B/s", format_bytes),
    Column("out_bytes_rate", "out B/s", format_bytes),
)


@click.command()
@with_client
def status(client: "Client") -> None:
    """Show the health of a broker on one screen.

    The screen shows problems, disk, topics, and the lag of groups. The exit code is 1 if there is a
    problem. If the broker requires tokens, the numbers need a token with the grant operate.
    """
    found = read_status(client)
    if is_terminal():
        show_status(found)
    else:
        write_json_line(found.as_row())
    if not found.is_well:
        raise click.exceptions.Exit(ExitCode.FAILED)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What `top` shows. `overview` is None if the token does not permit reading it, or if the
    broker is not ready."""

    status: BrokerStatus
    overview: Overview | None

    def as_row(self) -> dict[str, Any]:
        """Return the snapshot in the form that is written as a line of JSON."""
        return {**self.status.as_row(), "overview": self.overview}


def read_snapshot(client: "Client") -> Snapshot:
    """Return a snapshot of the client's broker. Raises all errors of the client, except those that
    make `overview` None."""
    from holdfast.client.errors import Forbidden, Unauthenticated, Unavailable

    found = read_status(client)
    overview = None
    with suppress(Forbidden, Unauthenticated, Unavailable):
        overview = client.overview()
    return Snapshot(found, overview)


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
@click.option("--once", is_flag=True, help="Measure rates for one --interval, print them, and end.")
@with_client
def top(client: "Client", interval_ms: int, once: bool) -> None:
    """Show traffic, delays, topic rates and group lag until Ctrl-C.

    If the output is not a terminal, one snapshot is printed as JSON: what status prints, and the
    broker's overview.
    """
    from time import sleep

    before = read_snapshot(client)
    if not is_terminal():
        write_json_line(before.as_row())
        return
    if not once:
        show_top(before, None)
    while True:
        sys.stdout.flush()
        sleep(interval_ms / 1000)
        now = read_snapshot(client)
        if not once:
            click.clear()
        show_top(now, before)
        if once:
            return
        before = now


def show_status(status: BrokerStatus) -> None:
    """Write a broker's status to the terminal."""
    _show_head(status)
    if status.figures is None:
        return
    topics, groups = status.figures.topics, status.figures.groups
    _show_some("topic", topics, status.figures.topic_count, _TOPICS, _row)
    behind = [each for each in groups if each.lag_messages]
    _show_some("group", behind, status.figures.group_count, _GROUPS, _row)
    if groups and not behind:
        click.echo("none of them is behind")


def show_top(now: Snapshot, before: Snapshot | None) -> None:
    """Write a snapshot, with the rates since the snapshot `before` if it is given."""
    _show_title(now.status)
    old = before.status.figures if before is not None else None
    seconds = now.status.read_at - before.status.read_at if before is not None else 0.0
    figures = now.status.figures
    if figures is not None:
        click.echo(_uptime(figures))
    if now.overview is not None:
        earlier = before.overview if before is not None else None
        for line in overview_lines(now.overview, earlier, seconds):
            click.echo(line)
    if figures is None:
        return
    _show_certificate(figures)
    known = {each.topic: each for each in old.topics} if old is not None else {}
    rows = [_with_rates(each, known.get(each.topic), seconds) for each in figures.topics]
    rows.sort(key=lambda row: -((row["in_rate"] or 0) + (row["out_rate"] or 0)))
    _show_some("topic", rows, figures.topic_count, _TOPIC_RATES, dict)
    _show_some("group", figures.groups, figures.group_count, _GROUPS, _row)


def _show_title(status: BrokerStatus) -> None:
    """Write whether all is well, and the problems."""
    figures = status.figures
    name = f"holdfast {figures.version}" if figures is not None else "holdfast"
    click.echo(
        safe_text(f"{name} at {status.url}: " + ("all is well" if status.is_well else "NOT WELL"))
    )
    for problem in status.problems:
        click.echo(f"  {safe_text(problem)}")
    if figures is None:
        click.echo("the numbers need a token with the grant operate")


def _uptime(figures: BrokerFigures) -> str:
    return (
        f"up {format_span(figures.uptime_seconds * 1000)}, "
        f"{format_bytes(figures.resident_bytes)} of memory"
    )


def _show_head(status: BrokerStatus) -> None:
    _show_title(status)
    figures = status.figures
    if figures is None:
        return
    click.echo(f"{_uptime(figures)}, {format_count(figures.connections, 'connection')}")
    click.echo(
        f"held: {format_count(figures.held_pulls, 'pull')} and "
        f"{format_count(figures.held_receives, 'receive')}; "
        f"{format_count(figures.in_flight, 'message')} in flight"
    )
    click.echo(
        f"disk: {format_bytes(figures.disk_free_bytes)} free; the log has "
        f"{format_bytes(figures.log_bytes)} in {format_count(figures.log_segments, 'segment')}"
    )
    _show_certificate(figures)


def _show_certificate(figures: BrokerFigures) -> None:
    """Write when the certificate expires. Write nothing without TLS."""
    if figures.certificate_expires_seconds is not None:
        click.echo(
            f"the certificate expires in {format_span(figures.certificate_expires_seconds * 1000)}"
        )


def _show_some(
    thing: str,
    rows: list[Any],
    count: int,
    columns: tuple[Column, ...],
    row_of: Callable[[Any], dict[str, Any]],
) -> None:
    """Write how many things there are, and a table of the first rows."""
    click.echo(f"\n{format_count(count, thing)}" + (f", {_ROWS} of them:" if count > _ROWS else ""))
    if rows:
        write_table([row_of(each) for each in rows[:_ROWS]], columns)


def _row(status: Any) -> dict[str, Any]:
    return {name: getattr(status, name) for name in status.__slots__}


def _with_rates(now: TopicStatus, before: TopicStatus | None, seconds: float) -> dict[str, Any]:
    """Return a topic's row with its rates per second since `before`. If a counter has become
    smaller (the broker was restarted), its rate is 0."""

    def rate(name: str) -> int | None:
        if before is None or seconds <= 0:
            return None
        moved: int = max(getattr(now, name) - getattr(before, name), 0)
        return round(moved / seconds)

    return {
        **_row(now),
        "in_rate": rate("messages_in"),
        "out_rate": rate("messages_out"),
        "in_bytes_rate": rate("bytes_in"),
        "out_bytes_rate": rate("bytes_out"),
    }
