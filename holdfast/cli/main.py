"""The command `holdfast`: its commands, and the one door through which every failure leaves."""

import os
import sys
from typing import Any

import click

from holdfast import __version__
from holdfast.cli.backup import backup, restore
from holdfast.cli.bench import bench
from holdfast.cli.check import check, dump
from holdfast.cli.config import config
from holdfast.cli.consume import consume
from holdfast.cli.demo import demo
from holdfast.cli.exits import ExitCode, Failure, failure_of
from holdfast.cli.leased_group import group
from holdfast.cli.message import message
from holdfast.cli.output import safe_text
from holdfast.cli.publish import publish
from holdfast.cli.pull import pull
from holdfast.cli.repair import repair
from holdfast.cli.serve import serve
from holdfast.cli.token import token
from holdfast.cli.topic import topic


class Root(click.Group):
    """The root command. A failure is one line on standard error and a code of `exits`."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run, print what failed, and exit; never returns."""
        kwargs["standalone_mode"] = False
        try:
            code = super().main(*args, **kwargs)
        except Failure as failure:
            code = _fail(failure.sentence, failure.code)
        except click.UsageError as error:
            code = _fail(_usage_line(error), error.exit_code)
        except click.ClickException as error:
            code = _fail(error.format_message(), error.exit_code)
        except click.Abort:
            code = ExitCode.INTERRUPTED
        sys.exit(code if isinstance(code, int) else ExitCode.OK)

    def invoke(self, context: click.Context) -> Any:
        """Run the command, turning the failures that have a name into click's."""
        try:
            done = super().invoke(context)
            sys.stdout.flush()
        except (click.exceptions.Exit, click.ClickException, click.Abort):
            raise
        except BrokenPipeError:
            # What is still buffered has nowhere to go; without this, Python says so at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise click.exceptions.Exit(ExitCode.OUTPUT_CLOSED) from None
        except Exception as error:
            failure = failure_of(error)
            if failure is None:
                raise
            raise failure from error
        return done


def _fail(sentence: str, code: int) -> int:
    # A sentence may quote what another sent: nothing in it is for the terminal to obey.
    click.echo(f"holdfast: {safe_text(' '.join(sentence.split()))}", err=True)
    return code


def _usage_line(error: click.UsageError) -> str:
    if error.ctx is None:
        return error.format_message()
    return f"{error.format_message()} See '{error.ctx.command_path} --help'."


@click.group(cls=Root, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="holdfast", message="%(prog)s %(version)s")
def main() -> None:
    """A message broker that keeps a log: publish, long-poll, replay.

    Start one with `holdfast serve`. Commands that talk to a broker find it by --url or
    HOLDFAST_URL. On a terminal they print tables, else JSON lines.
    """


COMMANDS = (
    serve,
    topic,
    publish,
    pull,
    consume,
    group,
    message,
    check,
    repair,
    dump,
    backup,
    restore,
    config,
    token,
    bench,
    demo,
)
for command in COMMANDS:
    main.add_command(command)
