"""The corpus of go-amqp's fuzzers: neither end of our engine hangs, grows or fails on it."""

from collections.abc import Iterator
from pathlib import Path
from random import Random

from holdfast.amqp.engine.connection import Connection, ConnectionSettings
from holdfast.amqp.wire.conditions import AmqpError
from holdfast.amqp.wire.frames import AMQP_HEADER, HEADER_BYTES, SASL_HEADER, frame
from holdfast.amqp.wire.performatives import Begin, Open, decode_composite, encode_composite
from holdfast.amqp.wire.types import decode, encode
from tests.fuzz import amqp_frames
from tests.interop.amqp.builds import HERE
from tests.interop.toolchains import need, run

MODULE = "github.com/Azure/go-amqp"
CHANGES = 10
_OPENED = b"".join(
    frame(0, encode_composite(each)) for each in (Open("corpus"), Begin(None, 0, 100, 100))
)


def corpus(kind: str) -> list[bytes]:
    """Return the inputs of the fuzzer "conn" (what a server sends) or "marshal" (values)."""
    need("go")
    command = ["go", "list", "-mod=readonly", "-f", "{{.Dir}}", MODULE]
    source = Path(run(command, cwd=HERE / "go").strip())
    folder = source / "internal" / "encoding" / "testdata" / "fuzz" / kind / "corpus"
    found = [each.read_bytes() for each in sorted(folder.iterdir())]
    assert len(found) > 100
    return found


def changed(data: bytes, random: Random) -> Iterator[bytes]:
    """Yield the input, and inputs with one to three other bytes."""
    yield data
    for _ in range(CHANGES if data else 0):
        other = bytearray(data)
        for _ in range(random.randint(1, 3)):
            other[random.randrange(len(other))] = random.randrange(256)
        yield bytes(other)


def test_both_ends_survive_the_frames_of_the_corpus() -> None:
    random = Random(1)
    for stream in corpus("conn"):
        for data in changed(stream, random):
            for step in (0, 7):  # all at once, and in small pieces
                amqp_frames.check(bytes((step,)) + data)
                frames = data.removeprefix(SASL_HEADER).removeprefix(AMQP_HEADER)
                amqp_frames.check(bytes((step,)) + AMQP_HEADER + _OPENED + frames)
                client_survives(data, step or len(data) or 1)


def client_survives(data: bytes, step: int) -> None:
    requires_sasl = data[:HEADER_BYTES] == SASL_HEADER
    settings = ConnectionSettings("client", 1024, requires_sasl=requires_sasl)
    client = Connection(settings, is_server=False)
    for start in range(0, len(data), step):
        list(client.receive_data(data[start : start + step]))
        assert 0 <= client.unfinished_bytes <= len(data)
        assert len(client.take_output()) < 4096
        if client.is_closed:
            return


def test_the_values_of_the_corpus_are_read_or_refused() -> None:
    random = Random(1)
    read = 0
    for value in corpus("marshal"):
        for data in changed(value, random):
            for decoder in (decode, decode_composite):
                try:
                    found, end = decoder(data, 0)
                except AmqpError:
                    continue
                assert 0 < end <= len(data)
                read += 1
                if decoder is decode:
                    again, _ = decode(encode(found), 0)
                    assert repr(again) == repr(found)
    assert read > 200
