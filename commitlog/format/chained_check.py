"""Verify both checksums of many adjacent small blocks with one calculation. Pure.

Two calls of the CRC function for each block cost more than all other steps of reading the block.
One call for all blocks is cheap, but each stored checksum is that of a single header or payload. So
this module changes two words in a copy of each block. In an intact block, these words set the CRC
register to its initial value at the end of the header, and at the start of the next block. So if
all blocks are intact, the CRC of the changed copy is the checksum of the last payload.

The register is a linear function of the bytes. So damage in only one payload, or in only one header
without its payload checksum, is found exactly if the block's own checksums find it. Damage in a
payload checksum, or in several of these parts, can also cancel out: this happens with a probability
of 2**-32, as in one large block.
"""

from functools import cache

import numpy as np
import numpy.typing as npt

from holdfast.commitlog.format.batch_header import HEADER_CRC_AT, HEADER_SIZE, Buffer
from holdfast.commitlog.format.checksum import POLYNOMIAL, crc32c_of_buffer, register_before

Int64s = npt.NDArray[np.int64]
UInt32s = npt.NDArray[np.uint32]

#: If blocks are larger on average, copying them costs more than a call for each checksum.
SMALL_BYTES = 2048

_WORD = 4


def have_valid_checksums(
    blocks: Buffer, starts: Int64s, header_crcs: UInt32s, payload_crcs: UInt32s
) -> bool:
    """Return whether both checksums of every block match.

    The blocks fill `blocks` without gaps, and begin at `starts`. There is at least one block, and
    each has a complete header with the right magic. The arrays have the checksums that are stored
    in the headers.
    """
    words = np.frombuffer(blocks, "<u4").copy()
    at = starts // _WORD
    # After a payload, the register is the complement of the payload's checksum, not its initial
    # value. The first word of the next block corrects the difference.
    words[at[1:]] ^= payload_crcs[:-1]
    # A header's checksum is computed with zeros in place of the checksum. With this word instead of
    # the zeros, the register has its initial value at the header's end.
    words[at + HEADER_CRC_AT // _WORD] = _before_rest_of_header(header_crcs)
    return crc32c_of_buffer(words.data.cast("B")) == int(payload_crcs[-1])


def _before_rest_of_header(registers: UInt32s) -> UInt32s:
    """Return the words that become `registers` when the rest of a header, from the checksum on,
    passes through the CRC register."""
    first, second, third, fourth = _tables()
    octets = np.ascontiguousarray(registers).view(np.uint8)
    words: UInt32s = first[octets[::4]] ^ second[octets[1::4]]
    words ^= third[octets[2::4]]
    words ^= fourth[octets[3::4]]
    return words


@cache
def _tables() -> tuple[UInt32s, ...]:
    """Return for each byte of a register, lowest first, the words of its 256 values."""
    word = register_before(1 << 31, HEADER_SIZE - HEADER_CRC_AT)
    of_bits = [word]  # of the highest bit; one step of the register moves a bit down by one
    for _ in range(31):
        word = of_bits[-1]
        of_bits.append(word >> 1 ^ (POLYNOMIAL if word & 1 else 0))
    of_bits.reverse()
    values = np.arange(256, dtype=np.uint32)
    tables = []
    for byte in range(4):
        table = np.zeros(256, np.uint32)
        for bit, word in enumerate(of_bits[8 * byte : 8 * byte + 8]):
            table ^= np.where(values >> bit & 1, np.uint32(word), np.uint32(0))
        tables.append(table)
    return tuple(tables)
