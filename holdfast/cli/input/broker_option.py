"""The options about the broker, such as --url. They may also be given before the sub-command."""

import copy
from collections.abc import Mapping
from typing import Any

import click
from click.core import ParameterSource


class BrokerOption(click.Option):
    """An option of a command that talks to a broker.

    It may be given before or after the sub-command. If it is given in both places, the value after
    the sub-command counts. `former` is an earlier name of the option. It is still accepted, but the
    help does not show it.
    """

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
        """Return the names and the help text, without the former name."""
        shown = copy.copy(self)
        shown.opts = [name for name in self.opts if name != self._former]
        return click.Option.get_help_record(shown, ctx)
