"""The options about the broker that are given before the sub-command.

The root command has them, too, so this module imports only click.
"""

import copy
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click
from click.core import ParameterSource

TLS_FILES = (
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


def options_before_commands(command: _Command) -> _Command:
    """Give the root command the options about the broker. They are hidden in its help, except
    --url. The sub-commands read them from the root command and check them."""
    names: list[tuple[str, str | None, str]] = [
        ("--url", None, "url"),
        ("--token", None, "token"),
        ("--token-file", None, "token_file"),
        *((flag, former, name) for flag, former, name, _ in TLS_FILES),
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
