"""The Python calls that a broker makes for one message that wakes a link of AMQP, in order.

    python -m bench.wake_calls [--messages 200] [--source group] [--tree]

The broker runs in a thread of this process, as for bench.publish_calls. Each message is published
over one connection and delivered over another, to a link with credit. From a group, the client
accepts the message. The first messages do not count. Prints the calls for each message, by folder
and by function, with the other work of the broker in that time. `--tree` prints the calls of one
message in order, as a tree, by thread.
"""

import argparse
import asyncio
import tempfile
import threading
import time
from pathlib import Path

import uvloop

from bench.publish_calls import Calls, print_calls
from holdfast.broker import Broker
from holdfast.config import load_config
from holdfast.free_port import free_port
from tests.support.clients.amqp_client import AmqpClient, data_message

_BODY_BYTES = 100
_CREDIT = 1000
#: The sender's settle mode "settled" (AMQP 1.0, part 2, section 2.8.2).
_SETTLED = 1
#: The caches of the functions are filled after this many messages.
_WARM_UP = 100
#: The wait after a message, so that the broker has done all work for it.
_PAUSE_S = 0.002


def main() -> None:
    """Count and print."""
    parser = argparse.ArgumentParser(description=__doc__ or "")
    parser.add_argument("--messages", type=int, default=200)
    parser.add_argument("--source", choices=("group", "topic"), default="group")
    parser.add_argument("--tree", action="store_true")
    options = parser.parse_args()
    calls = Calls()
    calls.install()
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as directory:
        _run(calls, Path(directory), options)
    print_calls(calls.counted, options.messages, "message")


def _run(calls: Calls, directory: Path, options: argparse.Namespace) -> None:
    loop = uvloop.new_event_loop()
    port = free_port()
    flags = {
        "data_dir": str(directory / "data"),
        "http_api.port": "0",
        "amqp.port": str(port),
        "topics.default_durability": "written",
    }
    broker = Broker(load_config(file=None, environ={}, flags=flags))
    thread = threading.Thread(target=loop.run_forever, name="loop")
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(broker.start(), loop).result(60)
        _wake(calls, port, options)
        asyncio.run_coroutine_threadsafe(broker.stop(), loop).result(60)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


def _wake(calls: Calls, port: int, options: argparse.Namespace) -> None:
    with AmqpClient(port, container="sends") as sends, AmqpClient(port, container="gets") as gets:
        sender = sends.sender("counted")
        if options.source == "group":
            receiver = gets.receiver("counted", credit=_CREDIT)
        else:
            receiver = gets.receiver("/topics/counted", credit=_CREDIT, snd_settle_mode=_SETTLED)
        for number in range(_WARM_UP + options.messages):
            calls.is_counting = number >= _WARM_UP
            sends.send(sender, data_message(b"x" * _BODY_BYTES))
            (delivery,) = gets.take()
            if options.source == "group":
                gets.settle(delivery)
            sends.take_outcomes()
            time.sleep(_PAUSE_S)
            if receiver.credit < _CREDIT // 2:
                receiver.grant(_CREDIT)
                gets.flush()
            if options.tree and number == _WARM_UP:
                print(*calls.tree, sep="\n")
            calls.tree.clear()
        calls.is_counting = False


if __name__ == "__main__":
    main()
