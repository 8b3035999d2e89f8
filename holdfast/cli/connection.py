"""The options of every command that talks to a broker, and the client made from them."""

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.exits import ExitCode, Failure
from holdfast.cli.token_option import token_options
from holdfast.cli.values import as_url

if TYPE_CHECKING:
    from holdfast.client import Client

DEFAULT_URL = "http://127.0.0.1:8711"

_TLS_FILES = (
    ("--ca-file", "ca_file", "Authorities that the broker's certificate must come from (PEM)."),
    ("--cert", "cert_file", "Certificate to show to the broker (PEM)."),
    ("--key", "key_file", "Its key (PEM); without it the certificate's file holds it."),
)


def broker_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options --url and --token, and those of TLS."""
    url = click.option(
        "--url",
        envvar="HOLDFAST_URL",
        default=DEFAULT_URL,
        show_default=True,
        show_envvar=True,
        callback=as_url,
        help="Where the broker is.",
    )
    return url(token_options(tls_options(command)))


def tls_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command --ca-file, --cert and --key, as `ca_file`, `cert_file` and `key_file`."""
    for flag, name, what in reversed(_TLS_FILES):
        command = click.option(
            flag,
            name,
            envvar=f"HOLDFAST_{flag.strip('-').replace('-', '_').upper()}",
            type=click.Path(dir_okay=False),
            metavar="FILE",
            show_envvar=True,
            help=what,
        )(command)
    return command


def with_client(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the broker's options, and call it with an open client in their place."""

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
    """Return a client from the values of the broker's options. Raises Failure."""
    from holdfast.client import Client

    try:
        # A person is told at once that nobody answers; producers and followers retry all the same.
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
