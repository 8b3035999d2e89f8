"""Third-party clients of AMQP as processes that run commands.

A client reads one command per line, a JSON object, and answers each with one line. Every command
uses a connection of its own. `error` in an answer says why the command failed.

| verb    | fields of the command                                          | the answer          |
|---------|----------------------------------------------------------------|---------------------|
| send    | address, messages, settled                                     | outcomes            |
| receive | address, count, credit, outcome, failed, undeliverable,        | messages, drained   |
|         | selector, settled, second, drain, annotations                  |                     |
| manage  | requests: [method, path, body as text or null]                 | replies: [status,   |
|         |                                                                | JSON]               |

Only rhea has `manage`. `receive` grants `credit` (at least `count`), receives `count` messages,
gives each one `outcome` (accept, reject, release, modify, or none), and then drains the link if
`drain` is true. `annotations` are those of the outcome modify; only rhea and go-amqp have them.
`second` asks for rcv-settle-mode second. `frame_bytes` sets the client's max-frame-size in any
command.

values.py defines how messages and values look.
"""

import json
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from typing import Any


class CommandFailed(Exception):
    """A client answered a command with an error."""


class Client:
    """A running client. Its commands are its methods."""

    def __init__(self, name: str, command: Sequence[str], url: str) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [*command, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, verb: str, **fields: Any) -> dict[str, Any]:
        """Run a command. Raises CommandFailed."""
        reply = self.ask(verb, **fields)
        if "error" in reply:
            raise CommandFailed(f"{self.name} {verb}: {reply['error']}")
        return reply

    def ask(self, verb: str, **fields: Any) -> dict[str, Any]:
        """Run a command and return its answer, which may be an error."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({"verb": verb, **fields}) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        assert line, f"{self.name} ended with {process.wait()}"
        reply: dict[str, Any] = json.loads(line)
        return reply

    def send(self, address: str, messages: Sequence[Any], **fields: Any) -> list[str]:
        """Send messages and return their outcomes."""
        reply = self.run("send", address=address, messages=list(messages), **fields)
        outcomes: list[str] = reply["outcomes"]
        return outcomes

    def receive(self, address: str, count: int, **fields: Any) -> list[dict[str, Any]]:
        """Receive and settle messages, and return them."""
        reply = self.run("receive", address=address, count=count, **fields)
        assert reply.get("drained", False) == fields.get("drain", False)
        messages: list[dict[str, Any]] = reply["messages"]
        return messages

    def stop(self) -> None:
        """End the process."""
        self._process.kill()
        with suppress(BrokenPipeError):
            self._process.communicate()
