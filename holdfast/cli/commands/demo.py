"""holdfast demo: show the main features on real input, with the demo's own broker."""

from pathlib import Path

import click

from holdfast.cli.exits import ExitCode, Failure


@click.command()
@click.option(
    "--file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Publish the lines of this file instead of this machine's own readings.",
)
@click.pass_context
def demo(context: click.Context, file: Path | None) -> None:
    """Show the main features in a minute or two.

    The demo shows publish, long poll, kill -9, replay and Spark. It starts a broker on a temporary
    folder and a free port of this machine, and leaves nothing behind. The exit code is 1 if
    anything did not work as promised.
    """
    from rich.console import Console

    from holdfast.demo.show import run_demo

    try:
        is_right = run_demo(file, Console(highlight=False))
    except ModuleNotFoundError as error:
        sentence = f"{error.name} is not installed; pip install 'holdfast[demo]', or use --file"
        raise Failure(sentence) from error
    if not is_right:
        context.exit(ExitCode.FAILED)
