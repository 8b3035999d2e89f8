"""The command `holdfast`: its sub-commands, and the single place that reports failures."""

import os
import sys
from contextlib import suppress
from typing import Any

import click

from holdfast import __version__
from holdfast.cli.command_table import ENTRIES, CommandTable
from holdfast.cli.exits import ExitCode, Failure, failure_of
from holdfast.cli.input.broker_option import check_takes_broker, options_before_commands
from holdfast.cli.output.terminal import safe_text


class Root(click.Group):
    """The root command. It reports a failure as one line, and exits with a code of exits.py."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands, the most important first."""
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands for the help, without importing a command."""
        limit = formatter.width - 6 - max(map(len, ENTRIES))
        rows = [
            (name, click.Command(name, help=entry.summary).get_short_help_str(limit))
            for name, entry in ENTRIES.items()
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run the command, print a failure, and exit. Never returns."""
        # Otherwise numpy starts a thread of OpenBLAS for each further core when it is imported,
        # which spins for 0.1 s of processor time; no command needs OpenBLAS.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        kwargs["standalone_mode"] = False
        try:
            code = super().main(*args, **kwargs)
        except Failure as failure:
            code = report_failure(failure.sentence, failure.code)
        except click.exceptions.NoArgsIsHelpError as error:
            # A command group without a command: show the help of the group.
            with suppress(BrokenPipeError):
                error.show()
            code = error.exit_code
        except click.UsageError as error:
            code = report_failure(_usage_line(error), error.exit_code)
        except click.ClickException as error:
            code = report_failure(error.format_message(), error.exit_code)
        except click.Abort:
            code = ExitCode.INTERRUPTED
        sys.exit(code if isinstance(code, int) else ExitCode.OK)

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Parse the command line. If help is requested, click writes the help in this method."""
        try:
            return super().make_context(*args, **kwargs)
        except BrokenPipeError:
            raise _exit_of_closed_output() from None

    def invoke(self, context: click.Context) -> Any:
        """Run the command. Convert known failures to Failure."""
        try:
            done = super().invoke(context)
            sys.stdout.flush()
        except (click.exceptions.Exit, click.ClickException, click.Abort):
            raise
        except BrokenPipeError:
            raise _exit_of_closed_output() from None
        except Exception as error:
            failure = failure_of(error)
            if failure is None:
                raise
            raise failure from error
        return done


def _exit_of_closed_output() -> click.exceptions.Exit:
    """Return the exit of a command whose output is a closed pipe."""
    # Discard buffered output; otherwise Python reports an error at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return click.exceptions.Exit(ExitCode.OUTPUT_CLOSED)


def report_failure(sentence: str, code: int) -> int:
    """Write a failure as one line to standard error, and return `code`."""
    # The message may quote text of another client, so escape control characters.
    with suppress(BrokenPipeError):  # if the pipe is closed, the exit code is enough
        click.echo(f"holdfast: {safe_text(' '.join(sentence.split()))}", err=True)
    return code


def _usage_line(error: click.UsageError) -> str:
    if error.ctx is None:
        return error.format_message()
    return f"{error.format_message()} See '{error.ctx.command_path} --help'."


@click.group(
    cls=Root, commands=CommandTable(), context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__, prog_name="holdfast", message="%(prog)s %(version)s")
@options_before_commands
@click.pass_context
def main(context: click.Context, /, **_broker_options: str | None) -> None:
    """A message broker that keeps a log: publish, long-poll, replay.

    Start one with `holdfast serve`. Commands that talk to a broker use --url or HOLDFAST_URL. On a
    terminal they print tables, otherwise JSON lines.
    """
    command = main.get_command(context, context.invoked_subcommand or "")
    if command is not None:
        check_takes_broker(context, command)
