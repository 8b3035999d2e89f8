"""holdfast token: manage the access tokens in a data directory. The broker may run or not."""

import contextlib
import getpass
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.exits import ExitCode, Failure
from holdfast.cli.input.start_position import parse_duration, parse_time
from holdfast.cli.input.values import as_size, option_callback
from holdfast.cli.output.terminal import Column, is_terminal, safe_text, write_json_line, write_rows

if TYPE_CHECKING:
    from holdfast.http_api.access.grants import Grant
    from holdfast.http_api.access.token_file import TokenFile
    from holdfast.http_api.access.tokens import Token

_MAX_NAME = 200


_data_dir_option = click.option(
    "--data-dir",
    required=True,
    envvar="HOLDFAST_DATA_DIR",
    show_envvar=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="The broker's data directory.",
)


@option_callback
def _as_grants(texts: tuple[str, ...]) -> "tuple[Grant, ...]":
    from holdfast.http_api.access.grants import parse_grants

    return tuple(grant for text in texts for grant in parse_grants(text))


@option_callback
def _as_name(text: str) -> str:
    if len(text) > _MAX_NAME or not text.isprintable():
        raise ValueError(f"it must have at most {_MAX_NAME} characters, all of them printable")
    return text


@click.group()
def token() -> None:
    """Create, list and revoke access tokens.

    A broker with the setting access.authentication requires a token in every request. A running
    broker applies every change within a second.
    """


@token.command("create")
@_data_dir_option
@click.option(
    "--name", default="", callback=_as_name, help="What the token is for, or who uses it."
)
@click.option(
    "--allow",
    "grants",
    multiple=True,
    required=True,
    callback=_as_grants,
    metavar="GRANT",
    help="What the token permits; may be repeated. publish:TOPICS, consume:TOPICS[:GROUPS], "
    "admin:TOPICS[:GROUPS], operate, or all. TOPICS and GROUPS are the beginning of a name, =NAME "
    "or *.",
)
@click.option("--expires-in", metavar="TIME", help="How long the token is valid: 12h, 30d, 52w.")
@click.option("--expires-at", metavar="TIME", help="When the token expires: 2026-12-31T00:00:00Z.")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the token into this new file, which only you can read, and do not print it.",
)
@click.option(
    "--publish-messages-per-s",
    type=click.IntRange(0, 2**53),
    metavar="N",
    help="Most published messages a second; 0: no limit. Default: the broker's configuration.",
)
@click.option(
    "--publish-bytes-per-s",
    callback=as_size,
    metavar="SIZE",
    help="Most published bytes a second; 0: no limit. Default: the broker's configuration.",
)
@click.option(
    "--certificate",
    default="",
    callback=_as_name,
    metavar="NAME",
    help="Create no token, but grants for clients that show a certificate of this name.",
)
def create(
    data_dir: Path,
    expires_in: str | None,
    expires_at: str | None,
    out: Path | None,
    publish_messages_per_s: int | None,
    publish_bytes_per_s: int | None,
    **settings: Any,
) -> None:
    """Create a token and print it once. The broker stores only its hash."""
    from holdfast.http_api.access.token_file import CertificateTaken

    if settings["certificate"] and out is not None:
        raise click.UsageError("--out is for a token, and --certificate creates none.")
    now_ms = time.time_ns() // 1_000_000
    expires_ms = _expires_ms(expires_in, expires_at, now_ms)
    rates = (publish_messages_per_s, publish_bytes_per_s)
    settings |= {
        "now_ms": now_ms,
        "expires_ms": expires_ms,
        "publish_rates": None if rates == (None, None) else rates,
    }
    user = _user()
    try:
        file, made, text = _create_token(data_dir, out, settings)
    except CertificateTaken as error:
        raise Failure(str(error), ExitCode.CONFLICT) from error
    _audit(file, "token.create", made, user)
    if is_terminal():
        click.echo(safe_text(str(out or text or made.token_id)))
        expiry = "never expires" if expires_ms is None else f"expires {_iso(expires_ms)}"
        click.echo(f"token {made.token_id}, {expiry}", err=True)
        return
    row = _row(made, now_ms)
    write_json_line(row if out is not None or settings["certificate"] else {**row, "token": text})


def _create_token(
    data_dir: Path, out: Path | None, settings: dict[str, Any]
) -> "tuple[TokenFile, Token, str]":
    """Create a token, and write its text to the new file `out` if it is given. Return the file of
    tokens, the token, and its text."""
    from holdfast.cli.process.acting_user import act_as_owner
    from holdfast.http_api.access.token_file import TokenFile, create_token

    # Create the file before the token, because a token whose text cannot be written is useless. The
    # file belongs to the user who runs this command, even if that is root.
    descriptor = _open_new_secret(out) if out is not None else None
    try:
        file = TokenFile(act_as_owner(data_dir))
        made, text = create_token(file, **settings)
        if descriptor is not None:
            with os.fdopen(descriptor, "w") as written:
                written.write(f"{text}\n")
    except BaseException:
        if out is not None:
            # If root runs this, the process now has only the rights of the data directory's owner,
            # and so it may not be allowed to delete the file.
            with contextlib.suppress(OSError):
                out.unlink(missing_ok=True)
        raise
    return file, made, text


def _open_new_secret(out: Path) -> int:
    try:
        return os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError as error:
        raise Failure(f"{out} exists; give the name of a new file", ExitCode.CONFLICT) from error


@token.command("list")
@_data_dir_option
def list_tokens(data_dir: Path) -> None:
    """List the tokens and their grants. The tokens themselves are not stored."""
    from holdfast.cli.process.acting_user import act_as_owner
    from holdfast.http_api.access.token_file import TokenFile

    file = TokenFile(act_as_owner(_existing(data_dir)))
    now_ms = time.time_ns() // 1_000_000
    read = file.read()
    for fault in read.faults:
        click.echo(f"warning: {safe_text(fault)}; the next change repairs it", err=True)
    rows = [_row(each, now_ms) for each in read.content.tokens]
    columns = [
        Column("token_id", "token id"),
        Column("name", "name"),
        Column("grants", "grants"),
        Column("created", "created (UTC)", _format_minute, is_text=True),
        Column("expires", "expires (UTC)", _format_minute, is_text=True),
        Column("state", "state"),
    ]
    seldom = ("certificate", "publish_messages_per_s", "publish_bytes_per_s")
    write_rows(rows, [*columns, *(each for each in seldom if any(row.get(each) for row in rows))])


@token.command("revoke")
@_data_dir_option
@click.argument("token_ids", nargs=-1, required=True, metavar="TOKEN_ID...")
def revoke(data_dir: Path, token_ids: tuple[str, ...]) -> None:
    """Revoke tokens by their ids. The broker refuses them within a second."""
    from holdfast.cli.process.acting_user import act_as_owner
    from holdfast.http_api.access.token_file import TokenFile, UnknownToken, revoke_tokens

    user = _user()
    file = TokenFile(act_as_owner(_existing(data_dir)))
    try:
        revoked = revoke_tokens(file, token_ids)
    except UnknownToken as error:
        raise Failure(str(error), ExitCode.NOT_FOUND) from error
    for each in revoked:
        _audit(file, "token.revoke", each, user)


def _existing(data_dir: Path) -> Path:
    if not data_dir.is_dir():
        raise Failure(
            f"{data_dir} is not a directory; give the broker's --data-dir", ExitCode.USAGE
        )
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
        raise click.UsageError(f"--expires-at {expires_at} is in the past.")
    return expires_ms


def _row(token: "Token", now_ms: int) -> dict[str, Any]:
    messages, size = token.publish_rates or (None, None)
    rates = {"publish_messages_per_s": messages, "publish_bytes_per_s": size}
    return {
        "token_id": token.token_id,
        "name": token.name,
        "grants": [str(grant) for grant in token.grants],
        "certificate": token.certificate or None,
        "created": _iso(token.created_ms),
        "expires": None if token.expires_ms is None else _iso(token.expires_ms),
        "state": "expired" if token.is_expired(now_ms) else "valid",
        **{name: rate for name, rate in rates.items() if rate is not None},
    }


def _iso(timestamp_ms: int) -> str:
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="seconds")


def _format_minute(iso: str) -> str:
    return iso[:16].replace("T", " ")


def _audit(file: "TokenFile", act: str, token: "Token", user: str) -> None:
    """Append a line to the audit log; the broker need not run. If this fails, only warn, because
    the change was made."""
    from holdfast.http_api.access.audit import AuditFile, audit_line
    from holdfast.http_api.access.config import AccessConfig

    config = AccessConfig()
    log = AuditFile(file.audit_path, config.audit_bytes, config.audit_files)
    line = audit_line(
        time.time(),
        act=act,
        about=token.token_id,
        outcome="done",
        principal=f"user:{user}",
        client="",
        details={"name": token.name, "grants": [str(grant) for grant in token.grants]},
    )
    try:
        log.append(line)
    except OSError as error:
        click.echo(f"warning: not written to the audit log: {safe_text(str(error))}", err=True)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
