"""holdfast token: who may do what. Works on a data directory, with or without its broker."""

import getpass
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.exits import ExitCode, Failure
from holdfast.cli.output import is_terminal, safe_text, write_json_line, write_rows
from holdfast.cli.start import parse_duration, parse_time

if TYPE_CHECKING:
    from holdfast.http_api.access.grants import Grant
    from holdfast.http_api.access.token_file import TokenFile
    from holdfast.http_api.access.tokens import Token

_MAX_NAME = 200


def _data_dir_option(command: Any) -> Any:
    return click.option(
        "--data-dir",
        required=True,
        envvar="HOLDFAST_DATA_DIR",
        show_envvar=True,
        type=click.Path(file_okay=False, path_type=Path),
        help="The broker's data directory.",
    )(command)


def _as_grants(
    _context: click.Context, _parameter: click.Parameter, texts: tuple[str, ...]
) -> "tuple[Grant, ...]":
    from holdfast.http_api.access.grants import InvalidGrant, parse_grants

    try:
        return tuple(grant for text in texts for grant in parse_grants(text))
    except InvalidGrant as error:
        raise click.BadParameter(f"{error}.") from error


def _as_name(_context: click.Context, _parameter: click.Parameter, text: str) -> str:
    if len(text) > _MAX_NAME or not text.isprintable():
        raise click.BadParameter(f"it must be {_MAX_NAME} printable characters at most.")
    return text


@click.group()
def token() -> None:
    """Make, list and revoke access tokens.

    A broker asks for them with access.authentication, and knows of every change within a second.
    """


@token.command("create")
@_data_dir_option
@click.option("--name", default="", callback=_as_name, help="What it is for, or whose it is.")
@click.option(
    "--allow",
    "grants",
    multiple=True,
    required=True,
    callback=_as_grants,
    metavar="GRANT",
    help="What it may do; may be repeated. publish:TOPICS, consume:TOPICS[:GROUPS], "
    "admin:TOPICS[:GROUPS], operate, or all. TOPICS and GROUPS are the beginning of a name, =NAME "
    "or *.",
)
@click.option("--expires-in", metavar="TIME", help="For how long: 12h, 30d, 52w.")
@click.option("--expires-at", metavar="TIME", help="Until when: 2026-12-31T00:00:00Z.")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write it into this new file, which nobody else may read, and do not print it.",
)
@click.option(
    "--certificate",
    default="",
    callback=_as_name,
    metavar="NAME",
    help="No token, but grants for whoever shows the client certificate of this name.",
)
def create(
    data_dir: Path,
    name: str,
    grants: "tuple[Grant, ...]",
    expires_in: str | None,
    expires_at: str | None,
    out: Path | None,
    certificate: str,
) -> None:
    """Make a token and print it, this once: the broker keeps no more than its hash."""
    from holdfast.http_api.access.token_changes import CertificateTaken, create_token
    from holdfast.http_api.access.token_file import TokenFile

    if certificate and out is not None:
        raise click.UsageError("--out is for a token, and --certificate makes none.")
    file = TokenFile(data_dir)
    now_ms = time.time_ns() // 1_000_000
    expires_ms = _expires_ms(expires_in, expires_at, now_ms)
    # Made before the token is: one that nobody has the text of would be of no use.
    descriptor = _new_secret_file(out) if out is not None else None
    try:
        made, text = create_token(
            file,
            name=name,
            grants=grants,
            now_ms=now_ms,
            expires_ms=expires_ms,
            certificate=certificate,
        )
        if descriptor is not None:
            with os.fdopen(descriptor, "w") as written:
                written.write(f"{text}\n")
    except BaseException as error:
        if out is not None:
            out.unlink(missing_ok=True)
        if isinstance(error, CertificateTaken):
            raise Failure(str(error), ExitCode.CONFLICT) from error
        raise
    _audit(file, "token.create", made)
    row = {**_row(made, now_ms), "token": text}
    if out is not None or certificate:
        del row["token"]
    if is_terminal():
        click.echo(safe_text(str(out or text or made.token_id)))
        click.echo(f"token {made.token_id}, {_lifetime(made)}", err=True)
    else:
        write_json_line(row)


@token.command("list")
@_data_dir_option
def list_tokens(data_dir: Path) -> None:
    """List the tokens and what they may do. The tokens themselves are not kept anywhere."""
    from holdfast.http_api.access.token_file import TokenFile

    file = TokenFile(_existing(data_dir))
    now_ms = time.time_ns() // 1_000_000
    read = file.read()
    for fault in read.faults:
        click.echo(f"warning: {safe_text(fault)}; the next change mends it", err=True)
    write_rows(
        [_row(each, now_ms) for each in read.content.tokens],
        ["token_id", "name", "grants", "certificate", "created", "expires", "state"],
    )


@token.command("revoke")
@_data_dir_option
@click.argument("token_ids", nargs=-1, required=True, metavar="TOKEN_ID...")
def revoke(data_dir: Path, token_ids: tuple[str, ...]) -> None:
    """Revoke tokens by their ids. The broker refuses them within a second."""
    from holdfast.http_api.access.token_changes import UnknownToken, revoke_tokens
    from holdfast.http_api.access.token_file import TokenFile

    file = TokenFile(_existing(data_dir))
    try:
        revoked = revoke_tokens(file, token_ids)
    except UnknownToken as error:
        raise Failure(str(error), ExitCode.NOT_FOUND) from error
    for each in revoked:
        _audit(file, "token.revoke", each)


def _existing(data_dir: Path) -> Path:
    if not data_dir.is_dir():
        raise Failure(f"{data_dir} is no directory; give the broker's --data-dir", ExitCode.USAGE)
    return data_dir


def _expires_ms(expires_in: str | None, expires_at: str | None, now_ms: int) -> int | None:
    if expires_in is not None and expires_at is not None:
        raise click.UsageError("Give --expires-in or --expires-at, not both.")
    try:
        if expires_in is not None:
            return now_ms + parse_duration(expires_in)
        if expires_at is None:
            return None
        expires_ms = parse_time(expires_at, now_ms)
    except ValueError as error:
        raise click.UsageError(f"{error}.") from error
    if expires_ms <= now_ms:
        raise click.UsageError(f"--expires-at {expires_at} is over already.")
    return expires_ms


def _new_secret_file(out: Path) -> int:
    try:
        return os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError as error:
        raise Failure(f"{out} exists; give a new file's name", ExitCode.CONFLICT) from error


def _row(token: "Token", now_ms: int) -> dict[str, Any]:
    return {
        "token_id": token.token_id,
        "name": token.name,
        "grants": [str(grant) for grant in token.grants],
        "certificate": token.certificate or None,
        "created": _iso(token.created_ms),
        "expires": None if token.expires_ms is None else _iso(token.expires_ms),
        "state": "expired" if token.is_expired(now_ms) else "valid",
    }


def _lifetime(token: "Token") -> str:
    return "never expires" if token.expires_ms is None else f"expires {_iso(token.expires_ms)}"


def _iso(timestamp_ms: int) -> str:
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="seconds")


def _audit(file: "TokenFile", act: str, token: "Token") -> None:
    """Tell the audit log, whether or not a broker runs. Without it, the change stands."""
    from holdfast.http_api.access.audit import AuditFile, audit_line
    from holdfast.http_api.access.config import AccessConfig

    config = AccessConfig()
    log = AuditFile(file.audit_path, config.audit_bytes, config.audit_files)
    line = audit_line(
        time.time(),
        act=act,
        about=token.token_id,
        outcome="done",
        principal=f"user:{_user()}",
        client="",
        details={"name": token.name, "grants": [str(grant) for grant in token.grants]},
    )
    try:
        log.append(line)
    except OSError as error:
        click.echo(f"warning: not in the audit log: {safe_text(str(error))}", err=True)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
