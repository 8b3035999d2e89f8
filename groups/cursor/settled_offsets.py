"""The set of the done offsets of a queue, as a floor and chunks of bits. Pure.

All offsets below the floor are done. Above the floor, each chunk of 1,024 offsets is an integer
with one bit per offset. If all offsets of a chunk are done, the integer is the shared object FULL.
Chunks that are entirely below the floor are dropped. Marking an offset as done takes constant time.
Raising the floor takes one step per chunk: a thousand steps for a million offsets.
"""

CHUNK = 1024
FULL = (1 << CHUNK) - 1


class SettledOffsets:
    """The done offsets of one cursor. The floor never decreases."""

    def __init__(self, floor: int = 0) -> None:
        self.floor = floor
        #: How many offsets at or above the floor are done.
        self.count_above = 0
        #: The numbers of the chunks that changed since their rows were last written.
        self.dirty: set[int] = set()
        #: chunk number -> bits.
        self._chunks: dict[int, int] = {}
        #: The chunks in which bits were cleared. Their rows may still have these bits, so they must
        #: be written again.
        self._shrunk: set[int] = set()

    def __contains__(self, offset: int) -> bool:
        if offset < self.floor:
            return True
        bits = self._chunks.get(offset >> 10)
        return bits is not None and bool(bits >> (offset & 1023) & 1)

    @property
    def count_all(self) -> int:
        """How many offsets are marked as done, including those below the floor."""
        return self.floor + self.count_above

    def add(self, offset: int) -> bool:
        """Mark an offset. Return False if it was marked before."""
        if offset in self:
            return False
        number = offset >> 10
        self._put(number, self._bits(number) | 1 << (offset & 1023))
        self.count_above += 1
        if offset == self.floor:
            self._move_floor(self.first_open(offset))
        return True

    def add_range(self, start: int, end: int) -> int:
        """Mark every offset in [start, end); return how many were not marked before."""
        start = max(start, self.floor)
        added = 0
        for number in range(start >> 10, (end + CHUNK - 1) >> 10):
            first = max(start - (number << 10), 0)
            last = min(end - (number << 10), CHUNK)
            if first >= last:
                continue
            before = self._bits(number)
            after = before | ((1 << last) - (1 << first))
            if after != before:
                added += (after ^ before).bit_count()
                self._put(number, after)
        self.count_above += added
        if start <= self.floor < end:
            self._move_floor(self.first_open(self.floor))
        return added

    def first_open(self, start: int) -> int:
        """Return the first offset at or after `start` that is not marked."""
        offset = max(start, self.floor)
        while (bits := self._chunks.get(offset >> 10)) is not None:
            if bits is not FULL:
                open_bits = ~(bits >> (offset & 1023))
                step = (open_bits & -open_bits).bit_length() - 1
                if (offset & 1023) + step < CHUNK:
                    return offset + step
            offset = ((offset >> 10) + 1) << 10
        return offset

    def count(self, start: int, end: int) -> int:
        """Return how many offsets in [start, end) are marked, including those below the floor."""
        found = max(0, min(end, self.floor) - start)
        start = max(start, self.floor)
        if start >= end:
            return found
        for number in self._chunk_numbers(start, end):
            first = max(start - (number << 10), 0)
            last = min(end - (number << 10), CHUNK)
            found += (self._chunks[number] >> first & ((1 << last - first) - 1)).bit_count()
        return found

    def raise_floor(self, floor: int) -> None:
        """Mark all offsets below `floor`."""
        if floor > self.floor:
            self.count_above -= self.count(self.floor, floor)
            self._drop_below(floor)
            self.floor = floor
            if (bits := self._chunks.get(floor >> 10)) is not None:
                self._put(floor >> 10, bits | (1 << (floor & 1023)) - 1)
            self._move_floor(self.first_open(floor))

    def remove_from(self, start: int) -> int:
        """Unmark every offset at `start` or beyond; return how many were marked. `start` must not
        be below the floor."""
        assert start >= self.floor
        removed = 0
        for number in [each for each in self._chunks if each >= start >> 10]:
            bits = self._chunks[number]
            kept = bits & ((1 << max(start - (number << 10), 0)) - 1)
            if kept != bits:
                removed += (bits ^ kept).bit_count()
                self._chunks[number] = kept
                self.dirty.add(number)
                self._shrunk.add(number)
        self.count_above -= removed
        return removed

    def chunks(self) -> dict[int, int]:
        """Return the chunks in memory, by number."""
        return dict(self._chunks)

    def chunk_to_write(self, number: int) -> int | None:
        """Return the bits of a chunk if it needs a row, otherwise None. It needs a row if it has
        bits above the floor, or if bits were cleared that its stored row may still have."""
        bits = self._chunks.get(number)
        if bits is None or number in self._shrunk:
            return bits
        if number == self.floor >> 10 and not bits >> (self.floor & 1023):
            return None
        return bits

    @classmethod
    def restore(cls, floor: int, chunks: dict[int, int], end: int) -> "SettledOffsets":
        """Return an object made of a stored floor and stored chunks. Bits at the offset `end` or
        beyond are ignored."""
        done = cls(floor)
        for number, bits in chunks.items():
            kept = bits & ((1 << min(max(end - (number << 10), 0), CHUNK)) - 1)
            if number == floor >> 10:
                kept |= (1 << (floor & 1023)) - 1
            if kept and number >= floor >> 10:
                done._chunks[number] = FULL if kept == FULL else kept
        done.count_above = done.count(floor, end)
        done._move_floor(done.first_open(floor))
        return done

    def _chunk_numbers(self, start: int, end: int) -> list[int]:
        first, last = start >> 10, (end + CHUNK - 1) >> 10
        if last - first < len(self._chunks):
            return [number for number in range(first, last) if number in self._chunks]
        return [number for number in self._chunks if first <= number < last]

    def _bits(self, number: int) -> int:
        bits = self._chunks.get(number)
        if bits is None:
            return (1 << (self.floor & 1023)) - 1 if number == self.floor >> 10 else 0
        return bits

    def _put(self, number: int, bits: int) -> None:
        self._chunks[number] = FULL if bits == FULL else bits
        self.dirty.add(number)

    def _move_floor(self, floor: int) -> None:
        if floor > self.floor:
            self.count_above -= floor - self.floor
            if floor >> 10 != self.floor >> 10:
                self._drop_below(floor)
            self.floor = floor

    def _drop_below(self, floor: int) -> None:
        """Drop the chunks that are below the chunk of the new floor."""
        for number in self._chunk_numbers(self.floor, floor >> 10 << 10):
            del self._chunks[number]
            self._shrunk.discard(number)
            self.dirty.add(number)
