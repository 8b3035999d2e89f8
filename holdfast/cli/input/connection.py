"""The options of every command that talks to a broker, and the client built from them.

The options may be given before or after the sub-command. Every user of the machine can see a
command line (`ps`). So the token can also come from a file, or from environment variables. Options
take precedence over the environment.
"""

import copy
import json
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from holdfast.cli.exits import ExitCode, Failure
from holdfast.cli.input.values import as_url
from holdfast.cli.output.logs import show_client_log

if TYPE_CHECKING:
    from holdfast.client import Client

DEFAULT_URL = "http://127.0.0.1:8711"

_TLS_FILES = (
    # The option, its former name, the command's parameter, and the help text.
    (
        "--tls-ca-file",
        "--ca-file",
        "ca_file",
        "Authorities that the broker's certificate must come from (PEM).",
    ),
    ("--tls-cert", "--cert", "cert_file", "Client certificate (PEM)."),
    (
        "--tls-key",
        "--key",
        "key_file",
        "Key of the client certificate (PEM). Default: the file of --tls-cert has it, too.",
    ),
)
#: The key of the token from --token-file in the context's `meta`.
_FROM_FILE = "holdfast.token"
_MAX_TOKEN_FILE_BYTES = 65536

_Command = TypeVar("_Command", bound=Callable[..., Any])


class BrokerOption(click.Option):
    """An option of a command that talks to a broker. If it is given both before and after the
    sub-command, the value after the sub-command counts. `former` is an earlier name of the option.
    It is still accepted, but the help does not show it."""

    def __init__(self, *arguments: Any, former: str | None = None, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        if former is not None:
            self.opts.append(former)
        self._former = former

    def consume_value(
        self, ctx: click.Context, opts: Mapping[str, Any]
    ) -> tuple[Any, ParameterSource]:
        """Return the value and its source. A value after the sub-command comes first, then a value
        before the sub-command, then the environment, then the default."""
        value, source = super().consume_value(ctx, opts)
        root = ctx.find_root()
        if source is ParameterSource.COMMANDLINE or root is ctx or self.name is None:
            return value, source
        if root.get_parameter_source(self.name) is ParameterSource.COMMANDLINE:
            return root.params[self.name], ParameterSource.COMMANDLINE
        return value, source

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        shown = copy.copy(self)
        shown.opts = [name for name in self.opts if name != self._former]
        return click.Option.get_help_record(shown, ctx)


def with_client(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options about the broker. It receives an open client instead of them."""

    @broker_options
    @wraps(command)
    def connected(**arguments: Any) -> None:
        names = ("url", "token", "ca_file", "cert_file", "key_file")
        with open_client(**{name: arguments.pop(name) for name in names}) as client:
            command(client, **arguments)

    return connected


def open_client(url: str, **options: str | None) -> "Client":
    """Return a client. `options` are those about the broker. Raises Failure if they are invalid."""
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
    for flag, former, name, what in reversed(_TLS_FILES):
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


def options_before_commands(command: _Command) -> _Command:
    """Give the root command the options about the broker. They are hidden in its help, except
    --url. The sub-commands read them from the root command and check them."""
    names: list[tuple[str, str | None, str]] = [
        ("--url", None, "url"),
        ("--token", None, "token"),
        ("--token-file", None, "token_file"),
        *((flag, former, name) for flag, former, name, _ in _TLS_FILES),
    ]
    for flag, former, name in reversed(names):
        command = click.option(
            flag,
            name,
            cls=BrokerOption,
            former=former,
            hidden=flag != "--url",
            help="Address of the broker. This and the other options about the broker may be given "
            "before or after the command.",
        )(command)
    return command


def check_takes_broker(context: click.Context, command: click.Command) -> None:
    """Raise UsageError if a broker option was given before a command that talks to no broker."""
    if _talks_to_broker(command):
        return
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if isinstance(parameter, BrokerOption) and source is ParameterSource.COMMANDLINE:
            raise click.UsageError(
                f"'{context.command_path} {command.name}' talks to no broker: omit "
                f"{parameter.opts[0]}."
            )


def _talks_to_broker(command: click.Command) -> bool:
    if isinstance(command, click.Group):
        return any(map(_talks_to_broker, command.commands.values()))
    return any(isinstance(parameter, BrokerOption) for parameter in command.params)
