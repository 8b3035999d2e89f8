"""A broker refuses bodies that are small on the wire and large when decoded, in bounded memory."""

import asyncio
import gzip
import zlib
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter

import aiohttp
import pytest

from holdfast.running_broker import RunningBroker

MIB = 1024 * 1024
#: 256 MiB of bodies that arrive or are processed, two of which take some 250 MiB each as objects,
#: and the memory of an idle broker.
BOUND_MIB = 1024
AT_ONCE = 24
#: Far longer than any refusal takes; a bomb that is really decoded takes minutes.
SOON_S = 30.0


def _squeezed(size: int) -> bytes:
    squeezer = zlib.compressobj(9, zlib.DEFLATED, 31)
    pieces = [squeezer.compress(bytes(MIB)) for _ in range(size // MIB)]
    return b"".join(pieces) + squeezer.flush()


def _lying(size: int) -> bytes:
    return _squeezed(size)[:-4] + b"\1\0\0\0"


def bombs() -> Mapping[str, tuple[str, str, bytes, set[int]]]:
    """Return bombs by name: content type, content encoding, body, allowed error statuses."""
    raw, json, msgpack, lines = (
        "",
        "application/json",
        "application/msgpack",
        "application/x-ndjson",
    )
    whole = 16 * MIB
    return {
        "200 MB of zeros": (raw, "gzip", _squeezed(200 * MIB), {413}),
        "200 MB that say they are one byte": (raw, "gzip", _lying(200 * MIB), {400, 413}),
        "gzip in gzip": (json, "gzip", gzip.compress(_squeezed(200 * MIB)), {400, 503}),
        "ten thousand empty members": (raw, "gzip", gzip.compress(b"") * 10_000, {400}),
        "a window of 2 GiB": (raw, "zstd", b"\x28\xb5\x2f\xfd\0\xa8" + bytes(100), {415}),
        "deflate": (raw, "deflate", zlib.compress(bytes(MIB)), {415}),
        "arrays of msgpack that claim": (
            msgpack, "", b"\xdd\0\xff\xff\xff" * (whole // 5), {400, 413, 503},
        ),
        "messages of msgpack that claim": (
            msgpack, "", b"\x81\xa8messages\xdd\xff\xff\xff\xff".ljust(whole, b"\x80"), {413, 503},
        ),
        "a map of msgpack that claims": (msgpack, "", b"\xdf\xff\xff\xff\xff", {400}),
        "bytes of msgpack that claim": (
            msgpack, "", b"\x81\xa8messages\x91\x81\xa4body\xc6\xff\xff\xff\xff", {400},
        ),
        "a million levels of msgpack": (
            msgpack, "", b"\x81\xa8messages\x91\x81\xa4body".ljust(MIB, b"\x91"), {400},
        ),
        "a hundred thousand levels of JSON": (json, "", b"[" * 100_000, {400}),
        "levels of JSON in a message": (
            json, "", b'{"messages":[{"properties":' + b'{"a":' * 100_000, {400},
        ),
        "a million small messages": (
            json, "", b'{"messages":[' + b'{"body":""},' * (whole // 12 - 3) + b"{}]}", {413, 503},
        ),
        "a number of a million digits": (
            json, "", b'{"messages":[{"body":"","queue":' + b"9" * MIB + b"}]}", {400},
        ),
        "a million properties": (
            json, "",
            b'{"messages":[{"body":"","properties":{'
            + b",".join(b'"%x":""' % number for number in range(1_000_000)) + b"}}]}",
            {413, 503},
        ),
        "blank lines": (lines, "", b"\n" * whole, {413, 503}),
        "a million lines": (lines, "", b"{}\n" * (whole // 3), {413, 503}),
        "bytes that are no text": (json, "", b'{"messages":[{"body":"\xff"}]}', {400}),
        "half a surrogate": (json, "", b'{"messages":[{"body":"\\ud800"}]}', {400}),
    }  # fmt: skip


def _high_water_mib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) // 1024


@pytest.mark.fault
@pytest.mark.machine
@pytest.mark.timeout(600)
async def test_bombs_are_refused_soon_and_in_little_memory(tmp_path: Path) -> None:
    with RunningBroker(tmp_path / "data") as broker:
        url = f"{broker.url}/v1/topics/t/messages"
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(
            connector=connector, skip_auto_headers=["Content-Type"]
        ) as session:

            async def send(name: str) -> None:
                kind, encoding, body, statuses = made[name]
                headers = {"Content-Type": kind, "Content-Encoding": encoding}
                given = {header: value for header, value in headers.items() if value}
                begun = perf_counter()
                try:
                    async with session.post(url, data=body, headers=given) as reply:
                        assert reply.status in statuses, (name, await reply.text())
                except (ConnectionResetError, aiohttp.ClientConnectionError):
                    # refused before the body had arrived, and read only briefly after that
                    assert 503 in statuses
                took[name] = max(took.get(name, 0.0), perf_counter() - begun)

            made = bombs()
            took: dict[str, float] = {}
            for name in made:
                await send(name)
            alone_mib = _high_water_mib(broker.pid)
            alone_s = max(took.values())
            slowest = max(took, key=took.__getitem__)
            together = {
                name: (kind, encoding, body, {*statuses, 503})
                for name, (kind, encoding, body, statuses) in made.items()
            }
            made = together
            for name in made:
                if len(made[name][2]) > 100_000:
                    await asyncio.gather(*(send(name) for _ in range(AT_ONCE)))
            together_mib = _high_water_mib(broker.pid)
            async with session.get(f"{broker.url}/healthz") as reply:
                assert reply.status == 200
            async with session.post(url, data=b"x") as reply:
                assert reply.status == 200
        slowest = max(took, key=took.__getitem__)
        print(
            f"\n{len(made)} bombs: high-water {alone_mib} MiB alone, {together_mib} MiB with "
            f"{AT_ONCE} at once; slowest alone {alone_s:.2f} s ({slowest})"
        )
        assert together_mib < BOUND_MIB
        assert alone_s < SOON_S
