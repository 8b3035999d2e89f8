"""holdfast group: create groups with leases, show groups, and change their offsets."""

import sys
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.commands.pull import format_option
from holdfast.cli.exits import ExitCode, Failure
from holdfast.cli.input.connection import with_client
from holdfast.cli.input.start_position import AtOffset, AtTime, Start
from holdfast.cli.input.values import (
    as_group,
    as_milliseconds,
    as_place_in_queue,
    as_span,
    as_start,
    as_topic,
    as_topic_filters,
    as_weighted_topics,
)
from holdfast.cli.output.group_view import LISTED, show_group
from holdfast.cli.output.message_format import Formatter
from holdfast.cli.output.terminal import is_terminal, write_json_line, write_rows

if TYPE_CHECKING:
    from holdfast.client import Client, Message
    from holdfast.client.values import ResetTo, SeekTo

_TIME_OR_END = "earliest, latest, or a time: 2026-11-21T10:00:00Z, epoch ms, -1h."
#: Settings that the broker reports under `fairness`.
_OF_FAIRNESS = ("engine", "cost")


@click.group()
def group() -> None:
    """Create groups, show their progress, and change their positions."""


@group.command("create")
@click.argument("name", callback=as_group)
@click.argument("topics", nargs=-1, metavar="[TOPIC[=WEIGHT]]...", callback=as_weighted_topics)
@click.option(
    "--filter",
    "filters",
    multiple=True,
    callback=as_topic_filters,
    metavar="TOPIC=FILTER",
    help="Which messages of a topic the group receives: tags a,b, or a SQL92 condition.",
)
@click.option(
    "--mode",
    type=click.Choice(["competing", "keyed", "single_active", "exclusive"]),
    help="How messages are divided among members: docs/groups.md.",
)
@click.option(
    "--engine", type=click.Choice(["sfq", "dwrr"]), help="Algorithm that chooses the next topic."
)
@click.option(
    "--cost",
    type=click.Choice(["count", "bytes", "time", "given"]),
    help="What the weights of topics divide: messages, bytes, working time or given costs.",
)
@click.option(
    "--start",
    type=click.Choice(["earliest", "latest"]),
    help="Where the group begins in queues for which it has no offset.",
)
@click.option(
    "--lease-ms", callback=as_span(1000), metavar="TIME", help="Duration of a lease, such as 90s."
)
@click.option(
    "--max-in-flight", type=click.IntRange(1), help="Most leases of all members at a time."
)
@click.option(
    "--max-attempts",
    type=click.IntRange(0),
    help="Failures after which a message becomes a dead letter; 0: never.",
)
@click.option(
    "--backoff-ms",
    callback=as_milliseconds,
    metavar="TIME,...",
    help="Delay after each failure; the last delay is used for all later failures.",
)
@click.option("--dead-letter-topic", metavar="TOPIC", help='Where dead letters go; "" drops them.')
@click.option(
    "--auto-delete-after-ms",
    callback=as_span(0),
    metavar="TIME",
    help="Delete the group when it has had no member for this time, such as 1h; 0: never.",
)
@click.option(
    "--last-value/--all-values",
    default=None,
    help="Deliver only the newest message of each key in its queue.",
)
@click.option("--replace", is_flag=True, help="Change the group if it exists with other settings.")
@with_client
def create(
    client: "Client",
    name: str,
    topics: dict[str, int],
    filters: dict[str, str],
    replace: bool,
    **settings: Any,
) -> None:
    """Create a group with leases, or check its settings.

    A group that exists with other topics or settings is not changed, and the exit code is 5. With
    --replace it is changed: the given topics replace its topics, and settings that are not given
    stay. A group that only stored offsets continues from these offsets.
    """
    for topic in filters.keys() - topics.keys():
        raise click.UsageError(f"--filter names {topic}, which is not among the topics.")
    terms = {
        topic: {"weight": weight, "filter": filters.get(topic)} for topic, weight in topics.items()
    }
    existing = None if replace else _config_of(client, name)
    if existing is None:
        client.create_group(name, terms or None, **settings)
    elif differences := _differences(existing, terms or None, settings):
        raise Failure(
            f"the group {name!r} exists with {'; '.join(differences)}; add --replace to change it",
            ExitCode.CONFLICT,
        )
    show_group(client.describe_group(name))


def _config_of(client: "Client", name: str) -> Mapping[str, Any] | None:
    """Return the settings of a group with leases, or None if there is no such group."""
    from holdfast.client.errors import UnknownGroup

    try:
        config: Mapping[str, Any] | None = client.describe_group(name).get("config")
    except UnknownGroup:
        return None
    return config


def _differences(
    config: Mapping[str, Any],
    topics: Mapping[str, Mapping[str, Any]] | None,
    settings: Mapping[str, Any],
) -> list[str]:
    """Return each difference between an existing group and the requested settings as a phrase, such
    as "--mode keyed, not competing" (the existing value comes first).

    `config` has the settings of the existing group, as the broker reports them. `topics` and
    `settings` are the requested values. A value that is None was not requested, and is not
    compared.
    """
    found = []
    if topics is not None:
        own = {name: (each["weight"], each["filter"]) for name, each in config["topics"].items()}
        asked = {name: (each["weight"], each["filter"]) for name, each in topics.items()}
        if own != asked:
            found.append(f"the topics {_format_topics(own)}, not {_format_topics(asked)}")
    for name, value in settings.items():
        if value is None:
            continue
        has = (config["fairness"] if name in _OF_FAIRNESS else config).get(name)
        if has != (value or None if name == "dead_letter_topic" else value):
            found.append(f"--{name.replace('_', '-')} {_plain(has)}, not {_plain(value)}")
    return found


def _format_topics(topics: Mapping[str, tuple[int, str | None]]) -> str:
    shown = []
    for name, (weight, expression) in sorted(topics.items()):
        text = name if weight == 1 else f"{name}={weight}"
        shown.append(text if expression is None else f"{text} ({expression})")
    return ", ".join(shown) or "none"


def _plain(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return "none" if value in (None, "") else str(value)


@group.command("list")
@with_client
def list_groups(client: "Client") -> None:
    """List the groups by name. A group without a mode only stores offsets."""
    write_rows(client.groups(), LISTED)


@group.command("describe")
@click.argument("name", callback=as_group)
@click.option("--watch", is_flag=True, help="Repeat until Ctrl-C.")
@click.option(
    "--interval",
    "interval_ms",
    callback=as_span(100, unit="s"),
    metavar="TIME",
    default="2s",
    show_default=True,
    help="Time between repetitions of --watch: 2s, 500ms, or seconds.",
)
@click.option(
    "--wide", is_flag=True, help="Print one table with every column, 160 characters wide."
)
@with_client
def describe(client: "Client", name: str, watch: bool, interval_ms: int, wide: bool) -> None:
    """Show a group's lag, queue by queue.

    For a group with leases, this also shows the available, in-flight, delayed and dead messages,
    how many were served, and the members.
    """
    from time import sleep

    show_group(client.describe_group(name), is_wide=wide)
    while watch:
        sleep(interval_ms / 1000)
        described = client.describe_group(name)
        if is_terminal():
            click.clear()
        show_group(described, is_wide=wide)
        sys.stdout.flush()


@group.command("offsets")
@click.argument("name", callback=as_group)
@click.argument("topic", callback=as_topic)
@with_client
def offsets(client: "Client", name: str, topic: str) -> None:
    """Show the offsets that a group has stored for a topic."""
    stored = client.stored_offsets(name, topic)
    if not is_terminal():
        write_json_line(
            {"group": name, "topic": topic, "offsets": stored.offsets, "etag": stored.etag}
        )
        return
    rows = [{"queue": queue, "offset": at} for queue, at in sorted(stored.offsets.items())]
    write_rows(rows, ["queue", "offset"], title=f"{name} on {topic}, etag {stored.etag}")


@group.command("reset")
@click.argument("name", callback=as_group)
@click.argument("topic", callback=as_topic)
@click.option(
    "--to",
    required=True,
    callback=as_start,
    metavar="PLACE",
    help=_TIME_OR_END,
)
@click.option("--dry-run", is_flag=True, help="Show what would change, and change nothing.")
@with_client
def reset(client: "Client", name: str, topic: str, to: Start, dry_run: bool) -> None:
    """Change the offsets that a group has stored for a topic."""
    moved = client.reset_offsets(name, topic, to=_target(to, "give a time"), dry_run=dry_run)
    if not is_terminal():
        write_json_line(moved)
        return
    title = f"{name} on {topic}: " + ("nothing was changed (--dry-run)" if dry_run else "moved")
    write_rows(_before_and_after(moved), ["queue", "before", "after", "change"], title=title)


def _before_and_after(moved: Mapping[str, Any]) -> list[dict[str, Any]]:
    before, after = moved["before"], moved["after"]
    rows = []
    for queue in sorted({*before, *after}, key=int):
        old, new = before.get(queue), after.get(queue)
        change = f"{new - old:+d}" if old is not None and new is not None else "new"
        rows.append({"queue": queue, "before": old, "after": new, "change": change})
    return rows


@group.command("seek")
@click.argument("name", callback=as_group)
@click.option(
    "--to",
    callback=as_start,
    metavar="PLACE",
    help=_TIME_OR_END,
)
@click.option(
    "--offset",
    "places",
    multiple=True,
    callback=as_place_in_queue,
    metavar="TOPIC:QUEUE:OFFSET",
    help="A queue's offset; may be given several times. Other queues stay where they are.",
)
@with_client
def seek(client: "Client", name: str, to: Start | None, places: dict[str, dict[int, int]]) -> None:
    """Let a group with leases continue at another offset or time.

    All leases of its members end.
    """
    if (to is None) == (not places):
        raise click.UsageError("Give either --to or --offset.")
    target: SeekTo = places if to is None else _target(to, "use --offset")
    moved = client.seek_group(name, target)
    if not is_terminal():
        write_json_line({"group": name, "offsets": moved})
        return
    rows = [
        {"topic": topic, "queue": queue, "offset": offset}
        for topic, queues in moved.items()
        for queue, offset in sorted(queues.items())
    ]
    write_rows(rows, ["topic", "queue", "offset"], title=name)


def _target(to: Start, advice: str) -> "ResetTo":
    """Return the value of --to as an argument for the client."""
    match to:
        case AtOffset():
            raise click.BadParameter(f"an offset fits one queue only; {advice}.", param_hint="--to")
        case AtTime(timestamp_ms):
            return timestamp_ms
        case _:
            return to


@group.command("redrive")
@click.argument("name", callback=as_group)
@click.option(
    "--max", "count", type=click.IntRange(1), help="Publish at most this many dead letters."
)
@click.option("--dry-run", is_flag=True, help="Print the dead letters, and publish none.")
@format_option
@with_client
def redrive(client: "Client", name: str, count: int | None, dry_run: bool, form: Formatter) -> None:
    """Publish a group's dead letters to their topics again.

    Each message keeps its key, tag and properties. A dead letter counts as redriven as soon as
    its new message is synced. An interrupted redrive continues where it stopped, and publishes
    no message twice.
    """
    if dry_run:
        for letter in islice(_dead_letters(client, name), count):
            sys.stdout.buffer.write(form(letter))
        return
    done = client.redrive(name, count)
    if not is_terminal():
        write_json_line({"group": name, "redriven": done.total, **done._asdict()})
        return
    rows = [{"topic": topic, "redriven": number} for topic, number in done.topics.items()]
    write_rows(rows, ["topic", "redriven"], title=f"{name}: from {done.dead_letter_topic}")
    if done.stuck:
        click.echo(
            f"{done.stuck} were not published: they do not name a topic of the group", err=True
        )


def _dead_letters(client: "Client", name: str) -> "Iterator[Message]":
    """Yield the dead letters that have not been published again yet."""
    from holdfast.client.consume.group_requests import (
        dead_letter_filter,
        dead_letter_topic,
        redrive_group,
    )
    from holdfast.client.errors import UnknownGroup

    topic = dead_letter_topic(name, client.describe_group(name))
    try:
        done: Mapping[int, int] = client.stored_offsets(redrive_group(name), topic).offsets
    except UnknownGroup:
        done = {}
    for queue in client.describe_topic(topic)["queues"]:
        offset = max(done.get(queue["queue"], 0), queue["min_offset"])
        yield from client.pull(
            topic, queue["queue"], offset, follow=False, filter=dead_letter_filter(name)
        )


@group.command("delete")
@click.argument("name", callback=as_group)
@click.option("--yes", is_flag=True, help="Do not ask.")
@with_client
def delete(client: "Client", name: str, yes: bool) -> None:
    """Delete a group and its state. Its messages stay in their topics."""
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError("Deleting a group cannot be undone: confirm it with --yes.")
        if click.prompt(f"The progress of {name} will be lost. Type its name", err=True) != name:
            raise click.UsageError("This is not its name; nothing was deleted.")
    client.delete_group(name)
