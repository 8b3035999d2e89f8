"""CRC32C (Castagnoli), with hardware support if the CPU has it. Pure."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from google_crc32c import extend as _extend
from google_crc32c import value as _value

from holdfast.commitlog.lazy_import import import_at_first_use

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
else:
    import_at_first_use(globals(), np="numpy")

#: Copying a buffer that is smaller than this costs less than a view of it (0.3 us against 0.9 us).
COPY_BELOW = 4096

#: The polynomial of CRC32C, with the lowest bit of each byte first.
POLYNOMIAL = 0x82F6_3B78

#: Return the CRC32C of `bytes`. This is the library's own function: other buffers raise TypeError.
crc32c: Callable[[bytes], int] = _value


def crc32c_of_buffer(data: bytes | bytearray | memoryview) -> int:
    """Return the CRC32C of any buffer; large buffers are not copied."""
    return crc32c_extended(0, data)


def crc32c_extended(crc: int, data: bytes | bytearray | memoryview) -> int:
    """Return the CRC32C of earlier data followed by `data`, given the earlier data's CRC32C
    `crc`. Large buffers are not copied."""
    if isinstance(data, bytes):
        return int(_extend(crc, data))
    if len(data) < COPY_BELOW:
        return int(_extend(crc, bytes(data)))
    return int(_extend(crc, _view(data)))


def crc32c_each(texts: Sequence[bytes]) -> list[int]:
    """Return the CRC32C of each text. For small texts this takes a third of the time of single
    calls."""
    return list(map(_value, texts))


def crc32c_of_ranges(
    data: bytes | bytearray | memoryview, starts: Sequence[int], ends: Sequence[int]
) -> list[int]:
    """Return the CRC32C of each range of `data`; large ranges are not copied."""
    if len(data) < COPY_BELOW * len(starts):  # if the ranges are small on average
        octets = bytes(data)  # this copies nothing if `data` is a bytes object
        return [_value(octets[a:b]) for a, b in zip(starts, ends, strict=True)]
    whole = _view(data)  # a slice of it costs less than a view of a slice
    return [int(_extend(0, whole[a:b])) for a, b in zip(starts, ends, strict=True)]


def register_before(register: int, zeros: int) -> int:
    """Return the CRC register that becomes `register` after this number of zero bytes. The register
    is the complement of the CRC so far, and is linear: to feed 4 bytes is to combine them with the
    register by XOR (lowest byte first), and then to feed 4 zero bytes."""
    for _ in range(8 * zeros):
        register = (register ^ POLYNOMIAL) << 1 | 1 if register >> 31 else register << 1
    return register


def _view(data: bytes | bytearray | memoryview) -> "npt.NDArray[np.uint8]":
    # The library accepts only read-only buffers without a release hook, such as a numpy view.
    return np.frombuffer(memoryview(data).toreadonly(), np.uint8)
