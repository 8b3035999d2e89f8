"""holdfast demo: show the main features on real input, with the demo's own broker."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from holdfast.cli.exits import ExitCode


@click.command()
@click.option(
    "--file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Publish the lines of this file instead of this machine's own readings.",
)
@click.option(
    "--no-wait",
    is_flag=True,
    help="End after the last step. Without this option, the broker on a terminal serves on until "
    "you press Ctrl-C.",
)
@click.pass_context
def demo(context: click.Context, file: Path | None, no_wait: bool) -> None:
    """Show the main features in 20 seconds, or in a minute with Spark.

    The demo shows publish, long poll, kill -9 and replay, and Spark if it is installed. It starts
    a broker on a temporary folder and a free port of this machine. On a terminal, the broker then
    serves on for the console and curl, until you press Ctrl-C. The demo leaves nothing behind. The
    exit code is 1 if anything did not work as promised.
    """
    from rich.console import Console

    from holdfast.demo.show import run_demo

    serves_on = not no_wait and sys.stdout.isatty()
    with _interrupted_by(signal.SIGTERM, signal.SIGHUP):
        is_right = run_demo(file, Console(highlight=False), serves_on=serves_on)
    if not is_right:
        context.exit(ExitCode.FAILED)


@contextmanager
def _interrupted_by(*signals: signal.Signals) -> Iterator[None]:
    """Treat these signals like Ctrl-C, so that the broker's process ends with the demo, also when
    the terminal is closed. A signal that is ignored (nohup) stays ignored."""
    changed = [each for each in signals if signal.getsignal(each) is signal.SIG_DFL]
    for each in changed:
        signal.signal(each, signal.default_int_handler)
    try:
        yield
    finally:
        for each in changed:
            signal.signal(each, signal.SIG_DFL)
