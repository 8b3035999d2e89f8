"""holdfast check and holdfast dump: examine files on the disk, without a broker."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.exits import ExitCode, Failure
from holdfast.cli.output.figures import format_bytes, format_count
from holdfast.cli.output.progress import progress
from holdfast.cli.output.terminal import is_terminal, safe_text, write_json_line

if TYPE_CHECKING:
    from holdfast.check import CheckReport


@click.command()
@click.argument(
    "directory", type=click.Path(exists=True, file_okay=False, path_type=Path), metavar="DIR"
)
@click.option("--quick", is_flag=True, help="Read only headers; payloads are not verified.")
@click.option(
    "--live",
    is_flag=True,
    help="Check while a broker runs: the log and the state, but not the index.",
)
@click.pass_context
def check(context: click.Context, directory: Path, quick: bool, live: bool) -> None:
    """Verify a data directory or a backup.

    Nothing is changed. Without --live, no broker may run on the directory. Every block is compared
    with its checksums, and the index with the log. The exit code is 1 for damage, and 6 if the
    directory cannot be examined. A note is a problem that a broker repairs by itself.
    """
    from holdfast.check import check_data_dir
    from holdfast.cli.process.acting_user import act_as_owner

    directory = act_as_owner(directory)
    try:
        with progress("checking") as show:
            report = check_data_dir(
                directory,
                deep=not quick,
                live=live,
                progress=lambda done, total: show(done, total, 0),
            )
    except OSError as error:
        reason = error.strerror or str(error)
        sentence = f"{error.filename or directory}: {reason}; the directory cannot be checked"
        raise Failure(sentence, ExitCode.REFUSED) from error
    (_print_report if is_terminal() else _print_json)(report)
    if not report.is_sound:
        context.exit(ExitCode.FAILED)


@click.command()
@click.argument(
    "file", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE"
)
@click.option("--messages", is_flag=True, help="Print also the messages of each block.")
def dump(file: Path, messages: bool) -> None:
    """Print the blocks of a segment file as JSON lines.

    Damage is a line of its own; the exit code is then 1.
    """
    from holdfast.check.dump import dump_segment
    from holdfast.cli.process.acting_user import act_as_owner

    file = act_as_owner(file.parent) / file.name
    damages = 0
    for row in dump_segment(file, messages=messages):
        write_json_line(row)
        damages += row["kind"] == "damage"
    if damages:
        raise Failure(
            f"{file}: {damages} damaged; 'holdfast check' on the data directory reports "
            "whether messages are lost"
        )


def _print_report(report: "CheckReport") -> None:
    for finding in report.findings:
        kind = "damage" if finding.damage else "note"
        click.echo(f"{kind}: {safe_text(finding.where)}: {safe_text(finding.what)}")
        for lost in finding.lost:
            click.echo(f"    lost: {safe_text(str(lost))}")
        if finding.mend:
            click.echo(f"    fix: {safe_text(finding.mend)}")
    verdict = "sound" if report.is_sound else "DAMAGED"
    scope = {"log": " (the index was not checked)", "backup": " (a backup)"}
    click.echo(
        f"{verdict}: {format_count(report.messages, 'message')} in "
        f"{format_count(report.blocks, 'block')} ({format_bytes(report.bytes)}) of "
        f"{format_count(report.segments, 'segment')}, {format_count(report.queues, 'queue')}, "
        f"{format_count(report.index_entries, 'index entry')}, "
        f"{format_count(report.topics, 'topic')}, {format_count(report.groups, 'group')}"
        f"{scope.get(report.scope, '')}"
    )


def _print_json(report: "CheckReport") -> None:
    for finding in report.findings:
        write_json_line(finding.as_row())
    counts = ("segments", "blocks", "messages", "bytes", "queues", "index_entries", "topics")
    write_json_line(
        {
            "kind": "summary",
            "is_sound": report.is_sound,
            "scope": report.scope,
            **{name: getattr(report, name) for name in (*counts, "groups")},
        }
    )
