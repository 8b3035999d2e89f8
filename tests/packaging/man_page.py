"""Writes the man page of the command line: `python -m tests.packaging.man_page`."""

import sys
from collections.abc import Iterable, Iterator

import click

from holdfast.cli.exits import MEANINGS
from holdfast.cli.input.broker_option import BrokerOption
from holdfast.cli.main import main
from holdfast.config import keys

#: The options of `holdfast serve` that the page lists although they set a key of the configuration.
_LISTED_KEYS = {"data_dir", "http_api.host", "http_api.port"}
_OTHER_KEYS = {key.flag for key in keys() if key.name not in _LISTED_KEYS}


def man_page() -> str:
    """Return holdfast(1), in the macros of man(7)."""
    root = click.Context(main, info_name="holdfast", **main.context_settings)
    commands = list(_tree(main, root))
    return "\n".join([*_head(), *_broker_options(commands), *_commands(commands), *_tail()]) + "\n"


_Tree = tuple[str, click.Command, click.Context]


def _tree(group: click.Group, context: click.Context) -> Iterator[_Tree]:
    """Yield every command that has no sub-commands: its path, itself, and its context."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        inner = click.Context(command, info_name=name, parent=context)
        if isinstance(command, click.Group):
            yield from _tree(command, inner)
        else:
            yield inner.command_path, command, inner


def _head() -> Iterator[str]:
    yield '.\\" Written by `make docs`.'
    yield '.TH HOLDFAST 1 "" Holdfast "User Commands"'
    yield ".SH NAME"
    yield "holdfast \\- a log\\-structured message broker with long polling"
    yield ".SH SYNOPSIS"
    yield ".B holdfast"
    yield ".I COMMAND"
    yield ".RI [ OPTIONS ]"
    yield ".RI [ ARGUMENTS ]"
    yield ".SH DESCRIPTION"
    yield from _paragraphs(main.help)


def _broker_options(commands: Iterable[_Tree]) -> Iterator[str]:
    yield ".SH OPTIONS ABOUT THE BROKER"
    yield "Every command that talks to a broker has these options."
    yield "They may be given before or after the command."
    listed = set()
    for _, command, context in commands:
        for option in command.params:
            if isinstance(option, BrokerOption) and option.name not in listed:
                listed.add(option.name)
                yield from _option(option, context)


def _commands(commands: Iterable[_Tree]) -> Iterator[str]:
    yield ".SH COMMANDS"
    yield ".B \\-h"
    yield "and"
    yield ".B \\-\\-help"
    yield "show the help of a command."
    for path, command, context in commands:
        arguments = [piece for piece in command.collect_usage_pieces(context) if piece[0] != "["]
        yield f".SS {_text(' '.join([path, *arguments]))}"
        yield from _paragraphs(command.help)
        for option in command.params:
            if not isinstance(option, BrokerOption) and _OTHER_KEYS.isdisjoint(option.opts):
                yield from _option(option, context)
        if not _OTHER_KEYS.isdisjoint(name for option in command.params for name in option.opts):
            yield ".PP"
            yield "Every key of the configuration is an option, too:"
            yield ".B holdfast config reference"
            yield "lists them."


def _option(option: click.Parameter, context: click.Context) -> Iterator[str]:
    record = option.get_help_record(context)
    if record is not None and record[1]:
        yield ".TP"
        yield f"\\fB{_text(record[0])}\\fR"
        yield _text(" ".join(record[1].split()))


def _tail() -> Iterator[str]:
    yield ".SH EXIT STATUS"
    for code, meaning in MEANINGS.items():
        yield ".TP"
        yield f".B {code.value}"
        yield _text(meaning)
    yield ".SH FILES"
    yield ".TP"
    yield ".I /etc/holdfast/holdfast.toml"
    yield "The settings of the broker that runs as holdfast.service."
    yield ".SH SEE ALSO"
    yield ".BR systemctl (1),"
    yield ".BR curl (1)"


def _paragraphs(text: str | None) -> Iterator[str]:
    for paragraph in (text or "").split("\n\n"):
        yield ".PP"
        yield _text(" ".join(paragraph.split()))


def _text(text: str) -> str:
    """Return text as roff prints it: with its backslashes and hyphens, and never as a request."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped[:1] in (".", "'") else escaped


if __name__ == "__main__":
    sys.stdout.write(man_page())
