"""The options of every command that talks to a broker, and the client built from them.

Every user of the machine can see a command line (`ps`). So the token can also come from a file, or
from environment variables. Options take precedence over the environment.
"""

import json
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from holdfast.cli.exits import ExitCode, Failure
from holdfast.cli.input.broker_option import TLS_FILES, BrokerOption
from holdfast.cli.input.values import as_url

if TYPE_CHECKING:
    from holdfast.client import Client

DEFAULT_URL = "http://127.0.0.1:8711"

#: The key of the token from --token-file in the context's `meta`.
_FROM_FILE = "holdfast.token"
_MAX_TOKEN_FILE_BYTES = 65536


def with_client(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options about the broker. It receives an open client instead of them."""

    @broker_options
    @wraps(command)
    def connected(**arguments: Any) -> None:
        names = ("url", "token", "ca_file", "cert_file", "key_file")
        with open_client(**{name: arguments.pop(name) for name in names}) as client:
            command(client, **arguments)

    return connected


def open_client(url: str, **options: Any) -> "Client":
    """Return a client. `options` are those about the broker. Raises Failure if they are invalid."""
    from holdfast.cli.output.client_log import show_client_log
    from holdfast.client import Client

    show_client_log()
    try:
        # With timeout_ms=0 the user sees at once that no broker answers. Producers, and readers and
        # consumers that follow, still retry.
        return Client(url, timeout_ms=0, **options)
    except ValueError as error:
        raise Failure(str(error), ExitCode.USAGE) from error


def broker_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options --url, --token and --token-file, and the options for TLS."""
    url = click.option(
        "--url",
        cls=BrokerOption,
        envvar="HOLDFAST_URL",
        default=DEFAULT_URL,
        show_default=True,
        show_envvar=True,
        callback=as_url,
        help="Address of the broker.",
    )
    return url(_token_options(_tls_options(command)))


def _tls_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options --tls-ca-file, --tls-cert and --tls-key. The command receives them
    as `ca_file`, `cert_file` and `key_file`."""
    for flag, former, name, what in reversed(TLS_FILES):
        command = click.option(
            flag,
            name,
            cls=BrokerOption,
            former=former,
            envvar=[_variable(flag), _variable(former)],
            type=click.Path(dir_okay=False),
            metavar="FILE",
            help=f"{what}  [env var: {_variable(flag)}]",
        )(command)
    return command


def _variable(flag: str) -> str:
    return f"HOLDFAST_{flag.strip('-').replace('-', '_').upper()}"


def _token_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command --token and --token-file. It receives `token`, which may be None."""
    file = click.option(
        "--token-file",
        cls=BrokerOption,
        envvar="HOLDFAST_TOKEN_FILE",
        show_envvar=True,
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        is_eager=True,
        expose_value=False,
        callback=_read_token_file,
        help="File with the access token.",
    )
    token = click.option(
        "--token",
        cls=BrokerOption,
        envvar="HOLDFAST_TOKEN",
        show_envvar=True,
        callback=_choose_token,
        help="Access token. Other users of this machine can see it; prefer the variable or a file.",
    )
    return token(file(command))


def _read_token_file(
    context: click.Context, _parameter: click.Parameter, file: Path | None
) -> None:
    if file is None:
        return
    try:
        with file.open("rb") as opened:
            text = opened.read(_MAX_TOKEN_FILE_BYTES).decode().strip()
    except OSError as error:
        raise click.BadParameter(f"{file}: {error.strerror or error}.") from error
    except UnicodeDecodeError:
        text = ""
    if text.startswith("{"):
        text = _token_of_json(text)
    if not text.isascii() or len(text.split()) != 1:
        raise click.BadParameter(f"{file} must contain one token and nothing else.")
    context.meta[_FROM_FILE] = text


def _token_of_json(text: str) -> str:
    """Return the token in the JSON output of 'holdfast token create', or "" if there is none."""
    try:
        found = json.loads(text)
    except ValueError:
        return ""
    token = found.get("token")
    return token if isinstance(token, str) else ""


def _choose_token(
    context: click.Context, _parameter: click.Parameter, token: str | None
) -> str | None:
    from_file: str | None = context.meta.get(_FROM_FILE)
    if from_file is None or token is None:
        return token if from_file is None else from_file
    is_option = context.get_parameter_source("token") is ParameterSource.COMMANDLINE
    file_is_option = context.get_parameter_source("token_file") is ParameterSource.COMMANDLINE
    if is_option == file_is_option:
        raise click.UsageError("Both a token and a token file are given: give one of them.")
    return token if is_option else from_file
