"""holdfast repair: repair a damaged data directory, and list the messages that cannot be saved."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.exits import ExitCode
from holdfast.cli.output.figures import format_bytes, format_count
from holdfast.cli.output.progress import progress
from holdfast.cli.output.terminal import is_terminal, safe_text, write_json_line

if TYPE_CHECKING:
    from holdfast.check.report import Finding
    from holdfast.repair import RepairReport


@click.command()
@click.argument(
    "directory", type=click.Path(exists=True, file_okay=False, path_type=Path), metavar="DIR"
)
@click.option(
    "--accept-loss",
    is_flag=True,
    help="Give up messages that cannot be read; a copy of the damaged bytes is kept.",
)
@click.pass_context
def repair(context: click.Context, directory: Path, accept_loss: bool) -> None:
    """Repair a damaged data directory that no broker uses.

    Damage that costs no message is repaired at once. If messages can no longer be read, this lists
    them, changes nothing and ends with code 1. With --accept-loss it gives them up: readers skip
    their offsets, which are never given to other messages, and the damaged bytes are kept in
    DIR/repaired. Restoring a backup instead loses nothing that the backup has.
    """
    from holdfast.cli.process.acting_user import act_as_owner
    from holdfast.repair import repair_data_dir

    directory = act_as_owner(directory)
    with progress("repairing") as show:
        report = repair_data_dir(
            directory,
            accept_loss=accept_loss,
            progress=lambda done, total: show(done, total, 0),
        )
    (_print_report if is_terminal() else _print_json)(report)
    if not report.is_sound:
        context.exit(ExitCode.FAILED)


def _print_report(report: "RepairReport") -> None:
    done = report.after is not None
    for each, reason in report.loss.lost:
        click.echo(f"{'gave up' if done else 'would give up'} {safe_text(str(each))} ({reason})")
    if report.loss.topics_may_be_missing:
        click.echo("topics and stored offsets that neither the state nor the log has are given up")
    if not report.loss.is_nothing:
        verb = "were" if done else "would be"
        count = format_count(report.loss.messages_at_least, "message")
        if report.loss.may_be_more:
            count = f"an unknown number of messages (at least {report.loss.messages_at_least})"
        click.echo(f"{count} and {format_bytes(report.loss.bytes)} of the log {verb} given up")
    if report.copies is not None:
        click.echo(f"the overwritten bytes are kept in {safe_text(str(report.copies))}")
    if not done:
        repaired = "only damage that costs no message was repaired"
        changed = repaired if report.is_begun else "nothing was changed"
        click.echo(f"{changed}; add --accept-loss, or restore a backup")
        return
    for finding in _remaining_damage(report):
        click.echo(f"still damaged: {safe_text(finding.where)}: {safe_text(finding.what)}")
    click.echo("sound" if report.is_sound else "still DAMAGED")


def _print_json(report: "RepairReport") -> None:
    for each, reason in report.loss.lost:
        write_json_line({"kind": "loss", "reason": reason, **asdict(each)})
    for finding in _remaining_damage(report):
        write_json_line(finding.as_row())
    write_json_line(
        {
            "kind": "summary",
            "is_sound": report.is_sound,
            "done": report.after is not None,
            "begun": report.is_begun,
            "messages": "unknown" if report.loss.may_be_more else report.loss.messages,
            "messages_at_least": report.loss.messages_at_least,
            "bytes": report.loss.bytes,
            "topics_may_be_missing": report.loss.topics_may_be_missing,
            "copies": None if report.copies is None else str(report.copies),
        }
    )


def _remaining_damage(report: "RepairReport") -> "list[Finding]":
    findings = report.after.findings if report.after else []
    return [finding for finding in findings if finding.damage]
