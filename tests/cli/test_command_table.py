"""The table of commands says what the commands say."""

import click
import pytest

from holdfast.cli.command_table import ENTRIES, CommandTable
from holdfast.cli.main import main


@pytest.mark.parametrize("width", [30, 50, 80, 200])
def test_the_help_lists_the_commands_as_click_does_after_importing_them(width: int) -> None:
    context = click.Context(main, info_name="holdfast")
    ours, clicks = click.HelpFormatter(width=width), click.HelpFormatter(width=width)
    main.format_commands(context, ours)
    click.Group.format_commands(main, context, clicks)
    assert ours.getvalue() == clicks.getvalue()


@pytest.mark.parametrize("name", ENTRIES)
def test_a_command_has_the_name_under_which_it_is_listed(name: str) -> None:
    assert CommandTable()[name].name == name


def test_a_name_that_is_not_listed_is_no_command() -> None:
    assert CommandTable().get("pul") is None


def test_commands_are_added_to_the_table_only() -> None:
    with pytest.raises(TypeError, match="ENTRIES"):
        main.add_command(click.Command("more"))
    with pytest.raises(TypeError, match="ENTRIES"):
        del main.commands["pull"]
