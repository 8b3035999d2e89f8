"""holdfast repair: make a damaged data directory sound, and say first what that costs."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.exits import ExitCode
from holdfast.cli.output import is_terminal, safe_text, write_json_line
from holdfast.cli.progress import progress
from holdfast.config import format_size

if TYPE_CHECKING:
    from holdfast.repair import RepairReport


@click.command()
@click.argument(
    "directory", type=click.Path(exists=True, file_okay=False, path_type=Path), metavar="DIR"
)
@click.option(
    "--accept-loss", is_flag=True, help="Let go of what cannot be read; a copy of it is kept."
)
@click.pass_context
def repair(context: click.Context, directory: Path, accept_loss: bool) -> None:
    """Make a damaged data directory sound that no broker runs on.

    What costs no message is mended at once. Where messages cannot be read any more, this says
    which, changes nothing and ends with code 1; with --accept-loss it lets go of them: readers
    pass over their offsets, which never stand for other messages, and the damaged bytes are kept
    in DIR/repaired. Restoring a backup instead loses nothing that the backup has.
    """
    from holdfast.repair import repair_data_dir

    with progress("repairing") as show:
        report = repair_data_dir(
            directory,
            accept_loss=accept_loss,
            progress=lambda done, total: show(done, total, 0),
        )
    if is_terminal():
        _print(report)
    else:
        _print_json(report)
    if not report.is_sound:
        context.exit(ExitCode.FAILED)


def _print(report: "RepairReport") -> None:
    done = report.after is not None
    for each, reason in report.loss.lost:
        click.echo(f"{'let go' if done else 'would let go'} of {safe_text(str(each))} ({reason})")
    if report.loss.topics_may_be_missing:
        click.echo("topics and stored offsets that neither the state nor the log has are let go of")
    if not report.loss.is_nothing:
        verb = "were" if done else "would be"
        click.echo(
            f"{report.loss.messages:,} messages and {format_size(report.loss.bytes)} of the log "
            f"{verb} let go of"
        )
    if not done:
        click.echo("nothing was changed; add --accept-loss, or restore a backup")
        return
    if report.copies is not None:
        click.echo(f"what was overwritten is kept in {safe_text(str(report.copies))}")
    for finding in report.after.findings if report.after else ():
        if finding.damage:
            click.echo(f"still damaged: {safe_text(finding.where)}: {safe_text(finding.what)}")
    click.echo("sound" if report.is_sound else "still DAMAGED")


def _print_json(report: "RepairReport") -> None:
    for each, reason in report.loss.lost:
        write_json_line(
            {
                "kind": "loss",
                "reason": reason,
                "topic": each.topic,
                "topic_id": each.topic_id,
                "queue": each.queue,
                "start_offset": each.start_offset,
                "end_offset": each.end_offset,
            }
        )
    for finding in report.after.findings if report.after else ():
        if finding.damage:
            write_json_line(finding.as_row())
    write_json_line(
        {
            "kind": "summary",
            "is_sound": report.is_sound,
            "done": report.after is not None,
            "messages": report.loss.messages,
            "bytes": report.loss.bytes,
            "topics_may_be_missing": report.loss.topics_may_be_missing,
            "copies": None if report.copies is None else str(report.copies),
        }
    )
