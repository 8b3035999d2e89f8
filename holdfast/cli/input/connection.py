"""The options of every command that talks to a broker, and the client built from them."""

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from holdfast.cli.exits import ExitCode, Failure
from holdfast.cli.input.broker_option import BrokerOption
from holdfast.cli.input.token_option import token_options
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
    ("--tls-cert", "--cert", "cert_file", "Certificate to show to the broker (PEM)."),
    (
        "--tls-key",
        "--key",
        "key_file",
        "Its key (PEM); without it the certificate's file holds it.",
    ),
)

_Command = TypeVar("_Command", bound=Callable[..., Any])


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
        help="Where the broker is.",
    )
    return url(token_options(tls_options(command)))


def tls_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options --tls-ca-file, --tls-cert and --tls-key. The command receives them
    as `ca_file`, `cert_file` and `key_file`. Their former names, without tls, are still
    accepted."""
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
            help="Where the broker is. This and the other options about the broker may stand "
            "before the command or behind it.",
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
                f"'{context.command_path} {command.name}' talks to no broker: leave "
                f"{parameter.opts[0]} out."
            )


def _talks_to_broker(command: click.Command) -> bool:
    if isinstance(command, click.Group):
        return any(map(_talks_to_broker, command.commands.values()))
    return any(isinstance(parameter, BrokerOption) for parameter in command.params)


def _variable(flag: str) -> str:
    return f"HOLDFAST_{flag.strip('-').replace('-', '_').upper()}"


def with_client(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options about the broker. When the command runs, it receives an open
    client instead of these options."""

    @broker_options
    @wraps(command)
    def connected(
        *,
        url: str,
        token: str | None,
        ca_file: str | None,
        cert_file: str | None,
        key_file: str | None,
        **arguments: Any,
    ) -> None:
        with open_client(url, token, ca_file, cert_file, key_file) as client:
            command(client, **arguments)

    return connected


def open_client(
    url: str,
    token: str | None,
    ca_file: str | None,
    cert_file: str | None,
    key_file: str | None,
) -> "Client":
    """Return a client for the values of the options about the broker. Raises Failure if they are
    invalid."""
    from holdfast.client import Client

    show_client_log()
    try:
        # With timeout_ms=0 the user sees at once that no broker answers. Producers, and readers and
        # consumers that follow, still retry.
        return Client(
            url,
            token=token,
            timeout_ms=0,
            ca_file=ca_file,
            cert_file=cert_file,
            key_file=key_file,
        )
    except ValueError as error:
        raise Failure(str(error), ExitCode.USAGE) from error
