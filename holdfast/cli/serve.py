"""holdfast serve: a broker in the foreground, until SIGTERM, SIGINT or a poisoned log."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import click

from holdfast.cli.config import config_option
from holdfast.config import Key, keys, load_config

#: Other names of a key's flag.
_SHORT = {"http_api.host": "--host", "http_api.port": "--port"}
#: What most want to say, and so stands first in the help.
_FIRST = ("data_dir", *_SHORT)
_METAVARS = {bool: "true|false", int: "N", str: "TEXT", Path: "DIR"}


def _key_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command one option for each key of the configuration.

    Values are texts: `load_config` checks them, so that a flag, a variable and a line in a file
    fail alike.
    """
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


@click.command()
@config_option
@_key_options
def serve(config_file: Path | None, **options: str | None) -> None:
    """Run a broker until it is told to stop.

    The first line on standard output says where it serves, once it does. Logs go to standard
    error. SIGTERM and SIGINT stop it within five seconds: held pulls are answered, what is being
    published is finished.
    """
    given = {key.name: options[_parameter(key)] for key in keys()}
    flags = {name: value for name, value in given.items() if value is not None}
    config = load_config(file=config_file, environ=os.environ, flags=flags)

    from holdfast.cli.serving import run

    code = run(config)
    # Its loop no longer listens: a second signal must not make a failure of a stop in order.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    sys.exit(code)
