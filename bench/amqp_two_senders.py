"""Two links of one connection publish, and the topic of one of them is slow.

    python -m bench.amqp_two_senders [--json] [--seconds 3] [--rounds 5]

Each sync of the log takes 5 ms longer, as on a slow disk. The slow topic is acknowledged after the
sync, the fast topic after the write. `alone` has only the fast link. In the control `coupled`, the
broker reads nothing as long as messages of the slow topic wait: so both links have the same rate.
All run without sockets: see `amqp_local.py`.
"""

import argparse
import asyncio
import time
from collections.abc import Iterator

import uvloop

from bench.amqp_local import LocalLink, local_broker, slow_down_syncs
from bench.rows import RATE, TIMES, Row, report
from holdfast.amqp.wire.types import Described, ULong, encode

_BODY_BYTES = 100
_MESSAGE = encode(Described(ULong(0x75), bytes(_BODY_BYTES)))
_SYNC_S = 0.005
_DURABILITY = {"fast": "written", "slow": "fsync"}
#: Messages of one link in a read.
_MOST = 200
#: More than any link sends in a second: without messages, the client would wait for ever.
_SENT_A_SECOND = 700_000


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="A slow and a fast topic on one connection.")
    parser.add_argument("--json", action="store_true", help="JSON lines in place of a table")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    slow_down_syncs(_SYNC_S)
    report(rows(options.seconds, options.rounds), as_json=options.json)


def rows(seconds: float, rounds: int) -> Iterator[Row]:
    """Measure each case in turns; yield the rates and their ratios."""
    found = [
        {
            mode: uvloop.run(_measure(mode, seconds))
            for mode in ("alone", "fast and slow", "coupled")
        }
        for _ in range(rounds)
    ]
    for mode in found[0]:
        for link in found[0][mode]:
            rates = [each[mode][link] for each in found]
            yield Row("", f"{link}, {mode}", _DURABILITY[link], RATE, rates, _BODY_BYTES)
    shares = [each["fast and slow"]["fast"] / each["alone"]["fast"] for each in found]
    yield Row("", "fast link, compared with alone", "-", TIMES, shares, at_least=0.9)
    totals = [sum(each["fast and slow"].values()) / sum(each["coupled"].values()) for each in found]
    yield Row("", "both links, compared with coupled", "-", TIMES, totals, at_least=4.0)


async def _measure(mode: str, seconds: float) -> dict[str, float]:
    """Publish for some seconds; return the messages per second of each link."""
    names = ["fast"] if mode == "alone" else ["fast", "slow"]
    links = {
        name: (_DURABILITY[name], LocalLink(handle, _MESSAGE, int(seconds * _SENT_A_SECOND)))
        for handle, name in enumerate(names)
    }
    async with local_broker(links, credit=170) as broker:
        start_s = time.monotonic()
        while time.monotonic() < start_s + seconds:
            is_idle = True
            for name, (_, link) in links.items():
                count = min(link.credit, _MOST)
                if count:
                    is_idle = False
                    broker.receive(link.take(count))
                    if mode == "coupled" and name == "slow":
                        assert link.target is not None
                        await link.target.finish()
            if is_idle:
                broker.changed.clear()
                await broker.changed.wait()
            else:
                await asyncio.sleep(0)
        passed_s = time.monotonic() - start_s
        return {name: link.stored / passed_s for name, (_, link) in links.items()}


if __name__ == "__main__":
    main()
