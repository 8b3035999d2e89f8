"""The options --token and --token-file: the token that a command sends to the broker.

Every user of the machine can see a command line (`ps`). So the token can also come from a file, or
from environment variables. Options take precedence over the environment.
"""

import json
from collections.abc import Callable
from pathlib import Path

import click
from click.core import ParameterSource

from holdfast.cli.input.broker_option import BrokerOption

_FROM_FILE = "holdfast.token"
_MAX_BYTES = 65536


def token_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options --token and --token-file. The command receives the token as
    `token`, or None if there is no token."""
    file = click.option(
        "--token-file",
        cls=BrokerOption,
        envvar="HOLDFAST_TOKEN_FILE",
        show_envvar=True,
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        is_eager=True,
        expose_value=False,
        callback=_read,
        help="File that holds the token for access.",
    )
    token = click.option(
        "--token",
        cls=BrokerOption,
        envvar="HOLDFAST_TOKEN",
        show_envvar=True,
        callback=_pick_token,
        help="Token for access. Others on this machine see it here: better the variable or a file.",
    )
    return token(file(command))


def _read(context: click.Context, _parameter: click.Parameter, file: Path | None) -> None:
    if file is None:
        return
    try:
        with file.open("rb") as opened:
            text = opened.read(_MAX_BYTES).decode().strip()
    except OSError as error:
        raise click.BadParameter(f"{file}: {error.strerror or error}.") from error
    except UnicodeDecodeError:
        text = ""
    if text.startswith("{"):
        text = _token_of_json(text)
    if not text.isascii() or len(text.split()) != 1:
        raise click.BadParameter(f"{file} holds no token, or more than that.")
    context.meta[_FROM_FILE] = text


def _token_of_json(text: str) -> str:
    """Return the token in the JSON output of 'holdfast token create', or "" if there is none."""
    try:
        found = json.loads(text)
    except ValueError:
        return ""
    token = found.get("token")
    return token if isinstance(token, str) else ""


def _pick_token(
    context: click.Context, _parameter: click.Parameter, token: str | None
) -> str | None:
    from_file: str | None = context.meta.get(_FROM_FILE)
    if from_file is None or token is None:
        return token if from_file is None else from_file
    is_option = context.get_parameter_source("token") is ParameterSource.COMMANDLINE
    file_is_option = context.get_parameter_source("token_file") is ParameterSource.COMMANDLINE
    if is_option == file_is_option:
        raise click.UsageError("A token and a file with one are both given: give one of them.")
    return token if is_option else from_file
