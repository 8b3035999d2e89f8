"""The demonstration: six steps, each explained in plain words and shown live.

Everything runs on loopback, with one broker process over a temporary folder. At the end no process
and no file is left. If asked, the broker serves on before that, until the user interrupts it.
"""

import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from holdfast.client import BlockingSendHandle, Client
from holdfast.client.errors import ClientClosed
from holdfast.demo.aggregate import aggregate_with_spark, missing_for_spark
from holdfast.demo.source import Reading, file_lines, machine_readings
from holdfast.running_broker import RunningBroker

TOPIC = "demo"
QUEUES = 4
#: This many readings are first published one by one, to show that each wakes the waiting consumer.
SINGLES = 5
STREAM_S = 6.0  # the longest time of streaming, without the restart of the broker
ROUND_S = 0.05  # the longest pause between two rounds of readings or two slices of lines
#: A file is streamed in slices of this many lines. The broker is killed after half of the slices.
SLICE_LINES = 250


class Follower(threading.Thread):
    """A consumer that long-polls all queues from the start and records each message."""

    def __init__(self, client: Client) -> None:
        super().__init__(name="follower", daemon=True)
        self._messages = client.pull(TOPIC, start="earliest")
        self.bodies: dict[tuple[int, int], bytes] = {}
        self.arrived = threading.Condition()
        self.last_arrival = 0.0
        self.error: Exception | None = None

    def run(self) -> None:
        """Read messages until the client is closed."""
        try:
            for message in self._messages:
                with self.arrived:
                    self.bodies[message.queue, message.offset] = message.body
                    self.last_arrival = time.perf_counter()
                    self.arrived.notify_all()
        except ClientClosed:
            pass
        except Exception as error:  # the main thread shows it
            with self.arrived:
                self.error = error
                self.arrived.notify_all()

    def wait_for(self, places: set[tuple[int, int]], timeout_s: float = 30.0) -> bool:
        """Wait until the messages at these places have arrived. Return False after `timeout_s`."""
        with self.arrived:
            self.arrived.wait_for(
                lambda: self.error is not None or self.bodies.keys() >= places, timeout_s
            )
            if self.error is not None:
                raise self.error
            return self.bodies.keys() >= places


def run_demo(file: Path | None, console: Console, *, serves_on: bool) -> bool:
    """Run all steps. With `serves_on` the broker then serves until a KeyboardInterrupt. Return
    False if a step did not work as promised. Raises FileNotFoundError for a missing file."""
    readings = machine_readings() if file is None else file_lines(file)
    first = list(islice(readings, SINGLES))
    with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as folder:
        return _Demo(console, Path(folder), file).run(first, readings, serves_on=serves_on)


class _Demo:
    def __init__(self, console: Console, folder: Path, file: Path | None) -> None:
        self._console = console
        self._folder = folder
        self._file = file
        self._acknowledged: dict[tuple[int, int], bytes] = {}

    def run(self, first: list[Reading], rest: Iterator[Reading], *, serves_on: bool) -> bool:
        source = "this machine's own readings"
        if self._file is not None:
            source = f"the lines of {escape(str(self._file))}"
        folder = escape(str(self._folder))
        self._step(1, "A broker", f"one process, one fresh data directory ({folder}).")
        with RunningBroker(self._folder / "data") as broker:
            self._say(f"It serves on [bold]{broker.url}[/]. Its input will be {source}.")
            with Client(broker.url) as client:
                client.create_topic(TOPIC, queues=QUEUES)
                follower = Follower(client)
                follower.start()
                self._show_wakes(client, follower, first)
                survived = self._show_kill(broker, client, follower, rest)
                replayed = self._show_replay(client, follower)
                self._show_spark(broker.url)
            served = self._show_what_to_try(broker, serves_on=serves_on)
        self._console.print("\nThe broker was stopped and its folder removed.")
        return survived and replayed and served

    # -- the steps -------------------------------------------------------------------------

    def _show_wakes(self, client: Client, follower: Follower, first: list[Reading]) -> None:
        self._step(
            2,
            "Long polling",
            "a consumer waits on all four queues. Each publish is acknowledged after it is on the "
            "disk, and wakes the consumer.",
        )
        table = Table("queue", "offset", "key", "acknowledged", "consumer has it", box=None)
        for reading in first:
            started = time.perf_counter()
            result = client.publish(TOPIC, reading.body, key=reading.key, tag=reading.tag)
            acknowledged = time.perf_counter()
            place = (result.queue, result.offset)
            self._acknowledged[place] = reading.body
            if not follower.wait_for({place}):
                raise TimeoutError(f"the message at {place} did not reach the consumer")
            table.add_row(
                str(result.queue),
                str(result.offset),
                Text(reading.key or ""),
                f"after {(acknowledged - started) * 1000:.1f} ms",
                f"after {(follower.last_arrival - started) * 1000:.1f} ms",
            )
        self._console.print(table)

    def _show_kill(
        self,
        broker: RunningBroker,
        client: Client,
        follower: Follower,
        readings: Iterator[Reading],
    ) -> bool:
        self._step(
            3,
            "kill -9 in mid-stream",
            "a producer streams batches; after half of them the broker is killed with SIGKILL and "
            "started again. Producer and consumer are not told: they continue by themselves.",
        )
        for body, handle in self._stream(broker, client, readings):
            result = handle.result(30)
            self._acknowledged[result.queue, result.offset] = body
        is_complete = follower.wait_for(set(self._acknowledged))
        extra = len(follower.bodies) - len(self._acknowledged)
        is_right = is_complete and not extra and follower.bodies == self._acknowledged
        self._verdict(
            is_right,
            f"{len(self._acknowledged):,} acknowledged, {len(follower.bodies):,} delivered: "
            f"0 lost, {max(extra, 0)} twice, every byte equal.",
            "messages are missing or differ",
        )
        return is_right

    def _stream(
        self, broker: RunningBroker, client: Client, readings: Iterator[Reading]
    ) -> list[tuple[bytes, BlockingSendHandle]]:
        """Publish in rounds, and kill and restart the broker in the middle. Return each body with
        the handle of its publish."""
        progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            console=self._console,
        )
        count = int(STREAM_S / ROUND_S)
        rounds = list(_slices(readings)) if self._file is not None else _rounds(readings, count)
        count = len(rounds) if isinstance(rounds, list) else count
        sent: list[tuple[bytes, BlockingSendHandle]] = []
        with progress, client.producer(TOPIC) as producer:
            task = progress.add_task("publishing", total=count)
            for number, part in enumerate(rounds):
                for reading in part:
                    handle = producer.send(reading.body, key=reading.key, tag=reading.tag)
                    sent.append((reading.body, handle))
                if number == count // 2:
                    acknowledged = sum(handle.done() for _, handle in sent)
                    broker.kill()
                    progress.console.print(
                        f"  [red]killed[/] with {acknowledged:,} of {len(sent):,} acknowledged"
                    )
                    broker.restart()
                    progress.console.print("  [green]started again[/] on the same directory")
                time.sleep(min(ROUND_S, STREAM_S / count))
                progress.advance(task)
        return sent

    def _show_replay(self, client: Client, follower: Follower) -> bool:
        self._step(4, "Replay", "a second consumer reads everything again, from offset 0.")
        started = time.perf_counter()
        again = {
            (message.queue, message.offset): message.body
            for queue in range(QUEUES)
            for message in client.pull(TOPIC, queue=queue, offset=0, follow=False)
        }
        seconds = time.perf_counter() - started
        self._verdict(
            again == follower.bodies,
            f"{len(again):,} messages in {seconds:.2f} s, the same bytes at the same offsets.",
            "the second reading differs from the first",
        )
        return again == follower.bodies

    def _show_spark(self, url: str) -> None:
        self._step(5, "Spark", "an aggregation over an offset range, read in parallel.")
        missing = missing_for_spark()
        if missing is not None:
            self._say(f"[yellow]Skipped:[/] {escape(missing)}")
            return
        middle = {
            queue: max((offset for q, offset in self._acknowledged if q == queue), default=0) // 2
            for queue in range(QUEUES)
        }
        self._say("Spark is starting (about ten seconds) ...")
        table = aggregate_with_spark(url, TOPIC, middle, is_reading=self._file is None)
        self._console.print(table)

    def _show_what_to_try(self, broker: RunningBroker, *, serves_on: bool) -> bool:
        """Return False if the broker ended while it served on."""
        lead = "while the broker serves." if serves_on else "as long as a broker serves them."
        self._step(6, "Try it yourself", lead)
        self._say(f"The console: [bold]{broker.url}/console/[/]")
        for purpose, command in curl_commands(broker.url):
            self._say(f"{purpose}:")
            # A terminal wraps the line, so that it can be copied as it is.
            self._console.print(f"    {command}", soft_wrap=True, markup=False)
        if not serves_on:
            self._say("On a terminal, without --no-wait, the broker serves until you press Ctrl-C.")
            return True
        with _noted_interrupts() as arrived:
            self._console.print("\nThe broker serves until you press [bold]Ctrl-C[/].")
            while broker.is_running and not arrived:
                time.sleep(0.2)
        if not arrived:
            self._say("[bold red]WRONG[/]  the broker ended by itself")
        return bool(arrived)

    # -- output in Rich's markup; text from outside the demonstration is escaped ---------------

    def _step(self, number: int, title: str, text: str) -> None:
        self._console.print(f"\n[bold cyan]{number}/6  {title}[/]: {text}")

    def _say(self, text: str) -> None:
        self._console.print(f"  {text}")

    def _verdict(self, is_right: bool, good: str, bad: str) -> None:
        self._say(f"[bold green]right[/]  {good}" if is_right else f"[bold red]WRONG[/]  {bad}")


@contextmanager
def _noted_interrupts() -> Iterator[list[int]]:
    """Yield a list. Each signal that would raise KeyboardInterrupt is appended to it instead.

    A KeyboardInterrupt within Popen.poll often leaves the lock of the Popen locked. Then every
    later `wait` for the process blocks for ever.
    """
    arrived: list[int] = []
    noted = [
        each for each in signal.Signals if signal.getsignal(each) is signal.default_int_handler
    ]
    for each in noted:
        signal.signal(each, lambda number, _: arrived.append(number))
    try:
        yield arrived
    finally:
        for each in noted:
            signal.signal(each, signal.default_int_handler)


def curl_commands(url: str) -> list[tuple[str, str]]:
    """Return three commands that work as they are, each with its purpose."""
    messages = f"{url}/v1/topics/{TOPIC}/messages"
    return [
        ("Read the oldest messages", f"curl '{messages}?from=earliest&max_messages=3'"),
        ("Wait up to a minute for a new one", f"curl '{messages}?from=latest&wait_ms=60000'"),
        ("Publish it, in a second terminal", f"curl {messages} -d 'hello'"),
    ]


def _rounds(readings: Iterator[Reading], count: int) -> Iterator[list[Reading]]:
    """Yield rounds of at most 64 readings. A round ends when a sensor repeats."""
    for _ in range(count):
        part: list[Reading] = []
        sensors: set[str | None] = set()
        for reading in readings:
            part.append(reading)
            sensors.add(reading.key)
            if len(sensors) < len(part) or len(part) >= 64:
                break
        yield part


def _slices(readings: Iterator[Reading]) -> Iterator[list[Reading]]:
    while part := list(islice(readings, SLICE_LINES)):
        yield part
