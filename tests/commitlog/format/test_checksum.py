import pytest

from holdfast.commitlog.format.checksum import (
    crc32c,
    crc32c_each,
    crc32c_extended,
    crc32c_of_buffer,
    crc32c_of_ranges,
    register_before,
)


# The vectors of RFC 3720, appendix B.4, and the check value of the CRC catalogue.
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0),
        (b"123456789", 0xE306_9283),
        (bytes(32), 0x8A91_36AA),
        (b"\xff" * 32, 0x62A8_AB43),
        (bytes(range(32)), 0x46DD_794E),
        (bytes(reversed(range(32))), 0x113F_DB5C),
    ],
)
def test_published_vectors(data: bytes, expected: int) -> None:
    assert crc32c(data) == expected


# From 4096 bytes on, a view is used instead of a copy.
@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 100_000])
def test_every_kind_of_buffer_has_the_same_checksum(size: int) -> None:
    data = bytes(i * 7 & 0xFF for i in range(size))
    expected = crc32c(data)
    within = memoryview(b"xx" + data + b"x")[2 : 2 + size]
    for buffer in (data, bytearray(data), memoryview(data), within):
        assert crc32c_of_buffer(buffer) == expected
        assert crc32c_extended(crc32c(b"begin"), buffer) == crc32c(b"begin" + data)
        assert crc32c_of_ranges(buffer, [0, 0], [size, 0]) == [expected, 0]


def test_a_buffer_can_be_changed_afterwards() -> None:
    data = bytearray(10_000)
    crc32c_of_buffer(data)
    data.append(1)  # BufferError while a view of it exists
    assert len(data) == 10_001


def test_checksums_of_many_texts_are_those_of_each_text() -> None:
    texts = [b"", b"a", "schlüssel".encode(), b"x" * 10_000]
    assert crc32c_each(texts) == [crc32c(text) for text in texts]
    assert crc32c_each([]) == []
    assert crc32c_each([b""]) == [0]


@pytest.mark.parametrize("zeros", [0, 1, 4, 116])
def test_the_register_before_zeros(zeros: int) -> None:
    after = crc32c(b"some bytes" + bytes(zeros)) ^ 0xFFFF_FFFF
    assert register_before(after, zeros) == crc32c(b"some bytes") ^ 0xFFFF_FFFF
