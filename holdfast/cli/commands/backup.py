"""holdfast backup and holdfast restore: copy a data directory, and rebuild it from the copy."""

from pathlib import Path

import click

from holdfast import __version__
from holdfast.cli.exits import ExitCode
from holdfast.cli.output.figures import format_bytes, format_count
from holdfast.cli.output.progress import progress
from holdfast.cli.output.terminal import is_terminal, safe_text, write_json_line

_FOLDER = click.Path(file_okay=False, path_type=Path)
_EXISTING = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command()
@click.argument("target", type=_FOLDER, metavar="DEST")
@click.option("--data-dir", required=True, type=_EXISTING, help="What to back up.")
@click.option(
    "--incremental",
    is_flag=True,
    help="Bring the backup in DEST up to date; what did not change is not copied again.",
)
@click.pass_context
def backup(context: click.Context, target: Path, data_dir: Path, incremental: bool) -> None:
    """Copy a data directory to DEST, even while its broker runs.

    The copy contains everything that was acknowledged before the backup began. Damage in the source
    is copied unchanged; the exit code is then 1. 'holdfast check DEST' verifies a backup.
    """
    from holdfast.acting_user import act_as_owner_with
    from holdfast.backup.create import make_backup

    data_dir, target = act_as_owner_with(data_dir, target)
    with progress("backing up") as show:
        report = make_backup(
            data_dir,
            target,
            incremental=incremental,
            holdfast_version=__version__,
            progress=lambda done, total: show(done, total, 0),
        )
    manifest = report.manifest
    for note in report.notes:
        click.echo(f"note: {safe_text(note)}", err=True)
    for damage in manifest.damage:
        click.echo(f"damage: {safe_text(damage)}", err=True)
    if is_terminal():
        click.echo(
            f"backed up {format_count(len(manifest.files), 'file')} to {safe_text(str(target))}: "
            f"{format_bytes(report.copied_bytes)} copied, {format_bytes(report.cloned_bytes)} "
            f"cloned, {format_bytes(report.reused_bytes)} there already; "
            f"the log up to {manifest.end_offset}"
        )
    else:
        write_json_line(
            {
                "backup_id": manifest.backup_id,
                "files": len(manifest.files),
                "copied_bytes": report.copied_bytes,
                "reused_bytes": report.reused_bytes,
                "cloned_bytes": report.cloned_bytes,
                "min_offset": manifest.min_offset,
                "end_offset": manifest.end_offset,
                "damage": list(manifest.damage),
                "notes": report.notes,
            }
        )
    if manifest.damage:
        context.exit(ExitCode.FAILED)


@click.command()
@click.argument("source", type=_EXISTING, metavar="SRC")
@click.option(
    "--data-dir",
    required=True,
    type=_FOLDER,
    help="The new data directory; it must be new or empty.",
)
@click.option(
    "--reserve-offsets",
    type=click.IntRange(0, 2**40),
    default=0,
    metavar="N",
    help="Leave out the N offsets after each queue's end, because consumers may have seen them.",
)
@click.pass_context
def restore(context: click.Context, source: Path, data_dir: Path, reserve_offsets: int) -> None:
    """Build a data directory from the backup SRC.

    The directory is built completely or not at all. Every byte is compared with its checksum, and
    the result is checked before it gets its final name.
    """
    from holdfast.acting_user import act_as_owner_from
    from holdfast.backup.restore import reserve_offsets as reserve
    from holdfast.backup.restore import restore_backup
    from holdfast.check import CheckReport, check_data_dir

    data_dir, source = act_as_owner_from(data_dir, source)
    reports: list[CheckReport] = []

    def finish(built: Path) -> None:
        report = check_data_dir(built)
        reports.append(report)
        reserve(built, report.ends, reserve_offsets)

    with progress("restoring") as show:
        report = restore_backup(
            source,
            data_dir,
            progress=lambda done, total: show(done, total, 0),
            finish=finish,
        )
    (found,) = reports
    if is_terminal():
        verdict = "sound" if found.is_sound else "with the damage that was backed up"
        click.echo(
            f"restored {format_count(found.messages, 'message')}, "
            f"{format_count(found.topics, 'topic')} and {format_count(found.groups, 'group')} "
            f"to {safe_text(str(data_dir))}: {verdict}"
        )
    else:
        write_json_line(
            {
                "backup_id": report.manifest.backup_id,
                "restored_bytes": report.restored_bytes,
                "is_sound": found.is_sound,
                "messages": found.messages,
                "topics": found.topics,
                "groups": found.groups,
            }
        )
    if not found.is_sound:
        context.exit(ExitCode.FAILED)
