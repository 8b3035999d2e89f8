"""The log compared with a list of the appended blocks, under random operations.

TEST_EXAMPLES=1000 runs it for longer. Hypothesis shrinks and prints a failure.
"""

import os
import random
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.segments.footer import read_footer, seal_segment
from holdfast.commitlog.segments.log_scan import Damage
from tests.support.simulation.simulated_disk import SimulatedDisk
from tests.support.storage.batches import Columns, columns
from tests.support.storage.small_log import SmallLog, raw_batch, walk

LOG = Path("/log")
EXAMPLES = int(os.environ.get("TEST_EXAMPLES", "20"))


class LogMachine(RuleBasedStateMachine):
    """A log of segments of 1 MiB on a simulated disk; `blocks` is its expected content."""

    @initialize()
    def begin(self) -> None:
        self.disk = SimulatedDisk()
        self.blocks: list[bytes] = []
        self.deleted = 0
        """The number of `blocks` that were deleted with their segments."""
        self._open()

    def _open(self) -> None:
        """Open the log; recovery scans all of it."""
        self.small = SmallLog(LOG, self.disk)
        self.recovered = self.small.open()

    def _open_from(self, index: int) -> None:
        """Open the log as if the index had been committed up to one of the blocks."""
        batches = [Batch.decode(block) for block in self.blocks]
        position = batches[index].header.physical_offset
        segment = self.small.log.segment_at(position)
        assert segment is not None
        start = segment.start_offset
        before = [b for b in batches[:index] if b.header.physical_offset >= start]
        keys = sum(len(batch) for batch in before if batch.key_hashes is not None)
        self.small.close()
        self.small = SmallLog(LOG, self.disk)
        for batch in batches[:index]:
            self.small.next_offsets[1, batch.header.queue_id] = batch.header.end_offset
        self.recovered = self.small.open(position, (start, len(before), keys))

    def _durable_blocks(self) -> int:
        """Return the number of synced blocks."""
        ends = [Batch.decode(block).header.end_physical_offset for block in self.blocks]
        return sum(end <= self.small.durable_offset for end in ends)

    # -- operations of a broker
    # ---------------------------------------------------------------------

    @rule(sent=columns(max_messages=4), queue=st.integers(0, 2))
    def append(self, sent: Columns, queue: int) -> None:
        self.blocks.append(bytes(self.small.append(sent.encode(), queue_id=queue).block))

    @rule(size=st.integers(150_000, 520_000))
    def append_large(self, size: int) -> None:
        self.blocks.append(bytes(self.small.append(raw_batch(size)).block))

    @rule(keys=st.integers(1, 15_000))
    def append_keyed(self, keys: int) -> None:
        self.blocks.append(bytes(self.small.append(raw_batch(keys=keys)).block))

    @rule()
    def sync(self) -> None:
        self.small.sync()

    @rule()
    def roll(self) -> None:
        self.small.log.roll()

    @rule()
    def prepare(self) -> None:
        self.small.log.prepare_next()

    @rule()
    def seal(self) -> None:
        for segment in self.small.log.segments:
            seal_segment(segment)
            assert segment.sealed == segment.ended
            if segment.ended:
                tables = read_footer(segment)
                assert tables is not None
                inside = [p for p in self._places() if self.small.log.segment_at(p) is segment]
                assert sorted(tables[0]["physical_offset"].tolist()) == inside

    @precondition(lambda self: len(self.small.log.segments) > 1)
    @rule(data=st.data())
    def delete_oldest(self, data: st.DataObject) -> None:
        self.small.sync()  # retention deletes only durable data
        ends = [segment.end_offset for segment in self.small.log.segments]
        border = data.draw(st.sampled_from(ends))
        self.small.log.delete_before(border)
        kept = self.small.log.min_offset
        self.deleted = sum(Batch.decode(b).header.physical_offset < kept for b in self.blocks)

    # -- faults -----------------------------------------------------------------------------------

    @rule()
    def restart(self) -> None:
        self.small.close()
        self._open()
        assert (self.recovered.damage, self.recovered.cut_bytes) == ([], 0)
        assert self.recovered.blocks == len(self.blocks) - self.deleted

    @precondition(lambda self: len(self.blocks) > self.deleted)
    @rule(data=st.data())
    def restart_from_a_position(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(self.deleted, len(self.blocks) - 1))
        self._open_from(index)
        assert (self.recovered.damage, self.recovered.cut_bytes) == ([], 0)
        assert self.recovered.blocks == len(self.blocks) - index

    @rule()
    def kill(self) -> None:
        self.disk = self.disk.kill()
        self._open()
        assert self.recovered.damage == []
        self._forget_lost(self.recovered.blocks)
        assert self.recovered.blocks == len(self.blocks) - self.deleted

    @rule(seed=st.integers(0, 2**32))
    def lose_power(self, seed: int) -> None:
        durable = self._durable_blocks()
        self.disk = self.disk.crash(random.Random(seed))
        self._open()
        assert self.recovered.damage == []
        self._forget_lost(self.recovered.blocks)
        assert len(self.blocks) >= durable

    @precondition(lambda self: self._durable_blocks() < len(self.blocks))
    @rule(data=st.data())
    def tear_the_tail(self, data: st.DataObject) -> None:
        """Cut the data that is not durable at a random byte, across all later segments."""
        durable = self._durable_blocks()
        first = Batch.decode(self.blocks[durable]).header.physical_offset
        torn = data.draw(st.integers(first, self.small.log.written_offset - 1))
        for segment in self.small.log.segments:
            at = max(torn, segment.first_offset)
            if at < segment.end_offset:
                position = at - segment.start_offset
                segment.file.write([bytes(segment.size - position)], position)
        intact = [self._is_intact(block) for block in self.blocks[self.deleted :]]
        self.small.close()
        self._open()
        assert self.recovered.damage == []
        assert self.recovered.blocks == [*intact, False].index(False)
        self._forget_lost(self.recovered.blocks)

    def _is_intact(self, block: bytes) -> bool:
        offset = Batch.decode(block).header.physical_offset
        segment = self.small.log.segment_at(offset)
        return segment is not None and segment.read(offset, len(block)) == block

    def _forget_lost(self, found: int) -> None:
        """Check that only an end of the log was lost, and drop it from the model."""
        kept = self.deleted + found
        for block in self.blocks[kept:]:
            header = Batch.decode(block).header
            assert header.end_physical_offset > self.recovered.written_offset
        self.blocks = self.blocks[:kept]

    # -- invariants -------------------------------------------------------------------------------

    def _places(self) -> list[int]:
        kept = self.blocks[self.deleted :]
        return [Batch.decode(block).header.physical_offset for block in kept]

    @invariant()
    def the_walk_finds_the_blocks_and_no_damage(self) -> None:
        found = walk(self.small.log, self.small.log.min_offset)
        damage = [each for each in found if isinstance(each, Damage)]
        assert [each for each in found if not isinstance(each, Damage)] == self._places()
        assert [each.reason for each in damage] in ([], ["unwritten"])
        if damage:
            assert damage[0].start == self.small.log.written_offset

    @invariant()
    def every_block_reads_as_it_was_written(self) -> None:
        for block in self.blocks[self.deleted :][-5:]:
            offset = Batch.decode(block).header.physical_offset
            assert self.small.log.read_batch(offset, len(block)).block == block


TestLogModel = LogMachine.TestCase
TestLogModel.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
