"""The sub-commands of `holdfast`: each is imported when it is first used.

The table repeats the first sentence of each command's help, so that the help of `holdfast` imports
no command.
"""

from collections.abc import Iterator, MutableMapping
from importlib import import_module
from typing import NamedTuple

import click


class Entry(NamedTuple):
    """The module in `commands/` that defines a command, and the first sentence of its help.
    `variable` is the command's name there, if it is not the command's own."""

    module: str
    summary: str
    variable: str | None = None


#: In the order in which the help lists them: the most important first.
ENTRIES = {
    "serve": Entry("serve", "Run a broker until a signal stops it."),
    "status": Entry("status", "Show the health of a broker on one screen."),
    "top": Entry("status", "Show traffic, delays, topic rates and group lag until Ctrl-C."),
    "topic": Entry("topic", "Create, list, describe, change and delete topics."),
    "publish": Entry("publish", "Publish lines of FILE or of standard input, or --body."),
    "pull": Entry("pull", "Print the messages of TOPIC, from all queues or one."),
    "consume": Entry("consume", "Print a group's messages, and acknowledge them."),
    "group": Entry("group", "Create groups, show their progress, and change their positions."),
    "message": Entry("message", "Find single messages."),
    "export": Entry("export", "Write messages of TOPIC to a file, ordered by queue and offset."),
    "import": Entry("import_", "Publish the messages of FILE to TOPIC.", "import_"),
    "check": Entry("check", "Verify a data directory or a backup."),
    "repair": Entry("repair", "Repair a damaged data directory that no broker uses."),
    "dump": Entry("check", "Print the blocks of a segment file as JSON lines."),
    "backup": Entry("backup", "Copy a data directory to DEST, even while its broker runs."),
    "restore": Entry("backup", "Build a data directory from the backup SRC."),
    "config": Entry("config", "Show a broker's settings."),
    "token": Entry("token", "Create, list and revoke access tokens."),
    "bench": Entry("bench", "Measure a broker's latency and throughput."),
    "demo": Entry("demo", "Show the main features in 20 seconds, or in a minute with Spark."),
}


class CommandTable(MutableMapping[str, click.Command]):
    """The commands by name, in the order of ENTRIES. A look-up imports the command's module."""

    def __init__(self) -> None:
        self._commands: dict[str, click.Command] = {}

    def __getitem__(self, name: str) -> click.Command:
        command = self._commands.get(name)
        if command is None:
            entry = ENTRIES[name]
            module = import_module(f"holdfast.cli.commands.{entry.module}")
            command = self._commands[name] = getattr(module, entry.variable or name)
        return command

    def __iter__(self) -> Iterator[str]:
        return iter(ENTRIES)

    def __len__(self) -> int:
        return len(ENTRIES)

    def __setitem__(self, name: str, command: click.Command) -> None:
        raise TypeError(f"{name}: commands are added to ENTRIES")

    def __delitem__(self, name: str) -> None:
        raise TypeError(f"{name}: commands are removed from ENTRIES")
