"""The exit codes of the command line, and the conversion of exceptions to one line and a code.

docs/cli.md promises the codes. An exception that is not converted here is a bug, and is shown with
its traceback.
"""

import sys
from enum import IntEnum

from holdfast.cli.output.figures import format_count


class ExitCode(IntEnum):
    """The exit codes of every command. The numbers never change their meaning."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    NOT_FOUND = 4
    CONFLICT = 5
    REFUSED = 6
    INTERRUPTED = 130
    OUTPUT_CLOSED = 141


MEANINGS = {
    ExitCode.OK: "done",
    ExitCode.FAILED: "it failed, or a check found a problem",
    ExitCode.USAGE: "the command, an option, a value or the configuration is wrong",
    ExitCode.UNREACHABLE: "no broker answers at the URL",
    ExitCode.NOT_FOUND: "no such topic, queue, group, message or offset",
    ExitCode.CONFLICT: "it exists with other settings, or was changed meanwhile",
    ExitCode.REFUSED: "the broker or the data directory does not permit it now",
    ExitCode.INTERRUPTED: "interrupted from the keyboard",
    ExitCode.OUTPUT_CLOSED: "the reader of the output went away",
}

_BY_STATUS = {
    **dict.fromkeys((404, 410, 416), ExitCode.NOT_FOUND),
    **dict.fromkeys((409, 412), ExitCode.CONFLICT),
    **dict.fromkeys((400, 413, 415, 422), ExitCode.USAGE),
    **dict.fromkeys((401, 403, 429, 503, 507), ExitCode.REFUSED),
}


class Failure(Exception):
    """Ends a command with an exit code and a sentence that says what failed and how to fix it."""

    def __init__(self, sentence: str, code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(sentence, code)
        self.sentence = sentence
        self.code = code

    def __str__(self) -> str:
        return self.sentence


#: Errors by which a broker or a data directory refuses a command, by their modules.
REFUSALS = {
    "holdfast.cli.process.acting_user": ("BelongsToAnother", "CannotActAsOwner"),
    "holdfast.amqp.listener": ("CannotListen",),
    "holdfast.backup.target": ("BackupRefused",),
    "holdfast.backup.object_store": ("AccessDenied",),
    "holdfast.backup.restore": ("RestoreRefused",),
    "holdfast.commitlog.disk.data_dir": ("DataDirInUse", "NotADataDir"),
    "holdfast.commitlog.disk.owned_files": ("UnsafeFile",),
    "holdfast.commitlog.errors": ("UnknownFormatVersion",),
    "holdfast.http_api.access.service": ("RemoteWithoutAccess", "RemoteWithoutTls"),
    "holdfast.http_api.access.token_file": ("TokensLocked", "TokensUnreadable"),
    "holdfast.http_api.wire.aiohttp_parser": ("ParserMissing",),
    "holdfast.http_api.wire.tls": ("TlsUnusable",),
}


def failure_of(error: Exception) -> Failure | None:
    """Return the Failure for `error`. Return None for an exception that is not expected (a bug)."""
    if isinstance(error, Failure):
        return error
    if isinstance(error, _loaded("holdfast.config", "ConfigError")):
        return Failure(str(error), ExitCode.USAGE)
    if isinstance(error, _loaded("holdfast.backup.object_store", "StoreUrlWrong")):
        return Failure(str(error), ExitCode.USAGE)
    if isinstance(error, _loaded("holdfast.backup.object_target", "BackupOvertaken")):
        return Failure(str(error), ExitCode.CONFLICT)
    if any(isinstance(error, _loaded(module, *names)) for module, names in REFUSALS.items()):
        return Failure(str(error), ExitCode.REFUSED)
    if isinstance(error, _loaded("holdfast.commitlog.errors", "LogError")):
        return Failure(str(error))
    if isinstance(error, OSError):
        reason = error.strerror or str(error)
        return Failure(f"{error.filename}: {reason}" if error.filename else reason)
    return _failure_of_client(error)


def _loaded(module: str, *names: str) -> tuple[type[Exception], ...]:
    """Return classes of a module. If the module was never imported, no error can be an instance of
    its classes: then return none of them, and import nothing."""
    found = sys.modules.get(module)
    return () if found is None else tuple(getattr(found, name) for name in names)


def _failure_of_client(error: Exception) -> Failure | None:
    from holdfast.client import errors

    if isinstance(error, errors.PublishFailed):
        cause = _failure_of_client(error.cause)
        if cause is None:
            return Failure(str(error))
        count = format_count(error.message_count, "message")
        return Failure(f"{count} to {error.topic} failed: {cause.sentence}", cause.code)
    if isinstance(error, errors.CertificateNotTrusted):
        return Failure(str(error), ExitCode.UNREACHABLE)
    if isinstance(error, errors.ConnectionFailed):
        return Failure(
            f"no broker answers at {error.url} ({error.reason}); start one with "
            "'holdfast serve', or give its address with --url or HOLDFAST_URL",
            ExitCode.UNREACHABLE,
        )
    if isinstance(error, errors.ApiError):
        from holdfast.cli.advice import explain_refusal

        return Failure(explain_refusal(error), _BY_STATUS.get(error.status, ExitCode.FAILED))
    if isinstance(error, errors.HoldfastError):
        return Failure(str(error))
    return None
