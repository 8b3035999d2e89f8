"""holdfast backup and holdfast restore: copy a data directory, and rebuild it from the copy."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast import __version__
from holdfast.cli.exits import ExitCode
from holdfast.cli.output.figures import format_bytes, format_count
from holdfast.cli.output.progress import progress
from holdfast.cli.output.terminal import is_terminal, safe_text, write_json_line

if TYPE_CHECKING:
    from holdfast.backup.create import BackupReport
    from holdfast.backup.stored import StoredBackup

_FOLDER = click.Path(file_okay=False, path_type=Path)
_EXISTING = click.Path(exists=True, file_okay=False, path_type=Path)


class FolderOrUrl(click.Path):
    """A folder, as a Path, or the URL of an object store, as a str."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and "://" in value:
            return value
        return super().convert(value, param, ctx)


@click.command()
@click.argument("target", type=FolderOrUrl(file_okay=False, path_type=Path), metavar="DEST")
@click.option("--data-dir", required=True, type=_EXISTING, help="What to back up.")
@click.option(
    "--incremental",
    is_flag=True,
    help="Bring the backup in DEST up to date; what did not change is not copied again. Always so "
    "if DEST is a URL.",
)
@click.option(
    "--keep",
    type=click.IntRange(1),
    metavar="N",
    help="Only if DEST is a URL: afterwards delete all but the latest N backups there.",
)
@click.pass_context
def backup(
    context: click.Context,
    target: Path | str,
    data_dir: Path,
    incremental: bool,
    keep: int | None,
) -> None:
    """Copy a data directory to DEST, even while its broker runs.

    DEST is a folder, or the URL of an object store: s3://BUCKET/PREFIX, gs://BUCKET/PREFIX,
    az://CONTAINER/PREFIX or file:///FOLDER (needs obstore: pip install 'holdfast[objectstore]').

    The copy contains everything that was acknowledged before the backup began. Damage in the source
    is copied unchanged; the exit code is then 1. 'holdfast check DEST' verifies a backup in a
    folder, 'holdfast restore' one in an object store.
    """
    from holdfast.backup.create import make_backup
    from holdfast.cli.process.acting_user import act_as_owner_with

    number = None
    if isinstance(target, str):
        report, number = _back_up_to_store(target, data_dir, keep)
    elif keep is not None:
        raise click.UsageError("--keep needs a URL; a folder holds one backup")
    else:
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
            + ("" if number is None else f"; backup {number}")
        )
    else:
        write_json_line(
            {
                "backup_id": manifest.backup_id,
                **({} if number is None else {"backup": number}),
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


def _back_up_to_store(url: str, data_dir: Path, keep: int | None) -> "tuple[BackupReport, int]":
    """Return the report, and the number of the new backup."""
    from holdfast.backup.create import make_backup_in
    from holdfast.backup.object_store import folder_of, open_store
    from holdfast.backup.object_target import ObjectTarget
    from holdfast.backup.target import BackupRefused
    from holdfast.cli.process.acting_user import act_as_owner, act_as_owner_with

    folder = folder_of(url)
    if folder is None:
        data_dir = act_as_owner(data_dir)
    else:
        data_dir, folder = act_as_owner_with(data_dir, folder)
        if folder.is_relative_to(data_dir):
            raise BackupRefused(url, "it is inside the data directory; use another folder")
    target = ObjectTarget(open_store(url, make=True), keep=keep)
    with progress("backing up") as show:
        report = make_backup_in(
            target,
            data_dir,
            holdfast_version=__version__,
            progress=lambda done, total: show(done, total, 0),
        )
    return report, target.number


@click.command()
@click.argument(
    "source", type=FolderOrUrl(exists=True, file_okay=False, path_type=Path), metavar="SRC"
)
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
@click.option(
    "--backup",
    "number",
    type=click.IntRange(1),
    metavar="N",
    help="Only if SRC is a URL: restore backup N there, not the latest.",
)
@click.pass_context
def restore(
    context: click.Context,
    source: Path | str,
    data_dir: Path,
    reserve_offsets: int,
    number: int | None,
) -> None:
    """Build a data directory from the backup SRC.

    SRC is a folder or a URL, as in 'holdfast backup'.
    The directory is built completely or not at all. Every byte is compared with its checksum, and
    the result is checked before it gets its final name.
    """
    from holdfast.backup.restore import reserve_offsets as reserve
    from holdfast.backup.restore import restore_backup
    from holdfast.check import CheckReport, check_data_dir

    data_dir, stored = _stored_backup(source, data_dir, number)
    reports: list[CheckReport] = []

    def finish(built: Path) -> None:
        report = check_data_dir(built)
        reports.append(report)
        reserve(built, report.ends, reserve_offsets)

    with progress("restoring") as show:
        report = restore_backup(
            stored,
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


def _stored_backup(
    source: Path | str, data_dir: Path, number: int | None
) -> "tuple[Path, Path | StoredBackup]":
    """Take the rights of the owner. Return the data directory without links, and the backup."""
    from holdfast.backup.object_backup import ObjectBackup
    from holdfast.backup.object_store import folder_of, open_store
    from holdfast.cli.process.acting_user import act_as_owner, act_as_owner_from

    folder = folder_of(source) if isinstance(source, str) else source
    if folder is None:
        data_dir = act_as_owner(data_dir)
    else:
        data_dir, folder = act_as_owner_from(data_dir, folder)
    if isinstance(source, str):
        return data_dir, ObjectBackup(open_store(source), number)
    if number is not None:
        raise click.UsageError("--backup needs a URL; a folder holds one backup")
    assert folder is not None
    return data_dir, folder
