"""The client's warnings on standard error, while a command waits for the broker."""

import logging
import sys


class _Notices(logging.Handler):
    """Writes messages for the user to standard error, each as a line `holdfast: MESSAGE`."""

    def emit(self, record: logging.LogRecord) -> None:
        sys.stderr.write(f"holdfast: {record.getMessage()}\n")
        sys.stderr.flush()


def show_client_log() -> None:
    """Show the client's warnings on standard error, for example that the broker does not answer.
    May be called again."""
    logger = logging.getLogger("holdfast.client")
    if not any(isinstance(each, _Notices) for each in logger.handlers):
        logger.addHandler(_Notices(logging.WARNING))
