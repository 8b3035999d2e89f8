"""The options of every command that talks to a broker, and the client made from them."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from holdfast.cli.values import as_url

DEFAULT_URL = "http://127.0.0.1:8711"


def broker_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options --url and --token."""
    url = click.option(
        "--url",
        envvar="HOLDFAST_URL",
        default=DEFAULT_URL,
        show_default=True,
        show_envvar=True,
        callback=as_url,
        help="Where the broker is.",
    )
    token = click.option(
        "--token", envvar="HOLDFAST_TOKEN", show_envvar=True, help="Token for access."
    )
    return url(token(command))


def with_client(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command --url and --token, and call it with an open client in their place."""

    @broker_options
    @wraps(command)
    def connected(*, url: str, token: str | None, **arguments: Any) -> None:
        from holdfast.client import Client

        # A person is told at once that nobody answers; producers and followers retry all the same.
        with Client(url, token=token, timeout_ms=0) as client:
            command(client, **arguments)

    return connected
