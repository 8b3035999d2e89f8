"""holdfast serve: run a broker in the foreground, until a signal stops it or it fails."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import click

from holdfast.cli.commands.config import config_option
from holdfast.cli.exits import ExitCode
from holdfast.cli.process.garbage_freezer import no_collections
from holdfast.config import Config, Key, keys, load_config

#: Some keys have a short option in addition to their normal one.
_SHORT = {"http_api.host": "--host", "http_api.port": "--port"}
#: The keys that most users set; the help lists them first.
_FIRST = ("data_dir", *_SHORT)
_METAVARS = {bool: "true|false", int: "N", str: "TEXT", Path: "DIR"}


def _key_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command one option for each key of the configuration. The command gets the values as
    text. `load_config` checks them, so that a wrong value gives the same error in an option, in an
    environment variable and in the file."""
    in_order = sorted(keys(), key=lambda key: key.name not in _FIRST)
    for key in reversed(in_order):
        names = [each for each in (_SHORT.get(key.name), key.flag, _parameter(key)) if each]
        command = click.option(
            *names,
            metavar=_metavar(key),
            help=f"{key.doc} [default: {key.shown_default}]",
        )(command)
    return command


def _metavar(key: Key) -> str:
    if key.field.metadata["choices"]:
        return "|".join(key.field.metadata["choices"])
    return "SIZE" if key.is_size else _METAVARS[key.type]


def _parameter(key: Key) -> str:
    return key.name.replace(".", "__")


def import_broker() -> Callable[[Config], ExitCode]:
    """Import the broker, and return the function that runs it."""
    with no_collections():
        from holdfast.cli.process.broker_process import run
    return run


@click.command()
@config_option
@_key_options
def serve(config_file: Path | None, **options: str | None) -> None:
    """Run a broker until a signal stops it.

    Once it serves, the first line on standard output is its address. Logs go to standard error.
    SIGTERM and SIGINT stop it within five seconds: it answers held pulls, and finishes publishes in
    progress. SIGHUP reloads the TLS files and the access tokens.
    """
    from holdfast.storage.machine_memory import machine_bytes

    given = {key.name: options[_parameter(key)] for key in keys()}
    flags = {name: value for name, value in given.items() if value is not None}
    memory_bytes = machine_bytes()
    config = load_config(
        file=config_file, environ=os.environ, flags=flags, memory_bytes=memory_bytes
    )

    code = import_broker()(config)  # late, to report a wrong setting fast
    # The event loop no longer handles signals. A second signal must not kill the process now,
    # because then a clean stop would end with a wrong exit code.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.exit(code)
