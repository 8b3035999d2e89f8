"""One run of a simulated broker through random operations, which its seed decides. Threads are not
controlled, so a failure occurs again only within a few runs of its seed."""

import asyncio
import errno
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.groups.service_types import Verb
from tests.support.simulation.simulated_broker import SimulatedBroker
from tests.support.simulation.simulated_clients import Attempt, Plan, Producer
from tests.support.simulation.simulated_disk import Call
from tests.support.simulation.simulated_groups import MEMBERS
from tests.support.simulation.simulated_process import Ending, bounded

#: (messages, bytes of a body). The larger sizes fill a segment of 1 MiB in a few publishes.
SIZES = [(1, 60), (3, 200), (20, 400), (2, 50_000), (1, 300_000), (4, 100_000)]


@dataclass(slots=True)
class CrashRun:
    """Draws and runs operations. `trace` lists the operations so far."""

    broker: SimulatedBroker
    rng: random.Random
    trace: list[str] = field(default_factory=list)
    operations: "Operations" = field(default_factory=lambda: OPERATIONS)
    sizes: list[tuple[int, int]] = field(init=False)
    restarts_when_full: int = -1
    """The number of restarts at the time when the disk was last full."""

    def __post_init__(self) -> None:
        # Few sizes, so that a new block often ends at the same offset as an old block.
        self.sizes = self.rng.sample(SIZES, 3)

    async def run(self, steps: int) -> None:
        """Start, run `steps` operations, and stop in order. Judge the result of each step."""
        await self.broker.open()
        try:
            for durability in ("fsync", "written"):
                await self.add_topic(durability)
            await self.broker.create_group()
            for _ in range(steps):
                await self.step()
            await self._mend()
            await self.broker.finish()
        except BaseException:
            await self.broker.abandon()
            raise

    async def step(self) -> None:
        """Run one operation. Restart the broker if the operation killed it."""
        operation = self.rng.choices(list(self.operations), list(self.operations.values()))[0]
        self.trace.append(operation.__name__)
        await operation(self)
        if self.broker.is_dead:
            await self._mend()

    async def _mend(self) -> None:
        while self.broker.is_dead:
            ending: Ending = self.broker.rng.choice(("kill", "crash", "crash"))
            self.trace.append(f"({ending})")
            await self.broker.restart(ending)

    # -- operations ------------------------------------------------------------------------

    async def add_topic(self, durability: str | None = None) -> None:
        """Create a topic with one producer of each kind."""
        if len(self.broker.plans) >= 4:
            return
        durability = durability or self.rng.choice(("fsync", "written"))
        plan = await self.broker.create_topic(self.rng.choice((1, 2)), durability)
        for queue in range(plan.queue_count):
            self.broker.add_producer(plan, queue, idempotent=True)
            self.broker.add_producer(plan, queue, idempotent=False)
        self.broker.add_producer(plan, None, idempotent=True)
        # A publish may ask for either mode on any topic.
        other = "written" if plan.is_durable else "fsync"
        self.broker.add_producer(plan, 0, idempotent=True, durability=other)

    async def publish(self) -> None:
        """Publish and wait for the answer."""
        await self.broker.wait_for(self._publish())

    async def publish_on(self) -> None:
        """Publish a few times without waiting."""
        for _ in range(self.rng.randint(1, 4)):
            self._publish()

    async def consume(self) -> None:
        """Pull from a few queues."""
        for _ in range(3):
            plan, queue = self._queue()
            await self.broker.consume(plan, queue, self.rng.choice((1, 10, 1000)))

    async def store_offsets(self) -> None:
        await self.broker.store_offsets(self._queue()[0])

    async def receive(self) -> None:
        """Let a member of the group receive."""
        await self.broker.receive(self.rng.choice(MEMBERS), self.rng.choice((1, 10, 1000)))

    async def settle(self) -> None:
        """Settle messages, and wait for the answer."""
        if self.broker.held:
            await bounded(self._settle())

    async def settle_on(self) -> None:
        """Settle messages without waiting for the answer."""
        if self.broker.held:
            self._settle()
            await asyncio.sleep(0)

    async def let_time_pass(self) -> None:
        self.broker.let_time_pass(self.rng.choice((0.5, 3.0, 8.0)))

    async def seek(self) -> None:
        """Seek the group to an offset of one queue."""
        plan, queue = self._queue()
        await self.broker.seek(plan, queue, self.rng.choice((0, 1, 5, 50)))

    async def leave(self) -> None:
        await self.broker.leave(self.rng.choice(MEMBERS))

    async def search(self) -> None:
        await self.broker.search()

    async def trim(self) -> None:
        """Let retention delete old data. The disk may die meanwhile."""
        if self.rng.random() < 0.5:
            await self.broker.quiesce()
        await self.broker.trim(self.rng.choice((1, 200_000, 1_000_000)))

    async def churn_topic(self) -> None:
        await self.broker.churn_topic()

    async def quiesce(self) -> None:
        await self.broker.quiesce()

    async def hold_syncs(self) -> None:
        """Make the disk slow until an operation waits for it."""
        self.broker.disk.hold_syncs()

    async def fill_disk(self) -> None:
        """Publish on a full disk, then make room again."""
        self.broker.disk.full = True
        self.restarts_when_full = self.broker.restart_count
        await self.publish_on()
        await self.publish()
        self.broker.disk.full = False
        await self.broker.repeat_all()

    async def fail_sync(self) -> None:
        self.broker.disk.fail("sync", after=self.rng.randint(0, 2))
        await self.publish_on()

    async def fail_write(self) -> None:
        """Let a write fail after it wrote a part: a bad sector, or a full disk."""
        code = self.rng.choice((errno.EIO, errno.ENOSPC, errno.EDQUOT))
        self.broker.disk.fail("write", code, after=self.rng.randint(0, 2), share=self.rng.random())
        await self.publish_on()

    async def fail_read(self) -> None:
        """Pull while reads of the disk fail, and again when they work."""
        plan, queue = self._queue()
        self.broker.disk.fail("read", after=self.rng.randint(0, 1))
        await self.broker.consume(plan, queue, 1000, may_fail=True)
        self.broker.disk.spare("read")
        await self.broker.consume(plan, queue, 1000)

    async def fail_segment(self) -> None:
        """Let the first attempt to create the next segment fail."""
        call: Call = self.rng.choice(("create", "rename", "sync_directory", "remove"))
        code = self.rng.choice((errno.EIO, errno.EMFILE, errno.ENOSPC))
        self.broker.disk.fail(call, code)
        await self.publish_on()
        await self.publish()
        self.broker.disk.spare(call)
        await self.broker.repeat_all()

    async def fail_trim(self) -> None:
        """Let retention fail while it deletes a segment."""
        call: Call = self.rng.choice(("remove", "sync_directory"))
        await self.broker.quiesce()
        self.broker.disk.fail(call)
        await self.broker.trim(self.rng.choice((1, 200_000)), may_fail=True)
        self.broker.disk.spare(call)

    async def jump_clock(self) -> None:
        """Set the wall clock forward or back by seconds or hours."""
        self.broker.clock.jump(
            self.rng.choice((-1, 1)) * self.rng.choice((1, 30, 3600, 3 * 3600)) * 1_000_000
        )

    async def expire(self) -> None:
        """Let retention delete messages that are too old by the current clock."""
        await self.broker.expire(self.rng.choice((100, 60_000, 7_200_000)))

    async def cut_power_soon(self) -> None:
        """Cut the power at one of the next changes to the disk."""
        self.broker.disk.freeze_after(self.rng.randint(0, 12))

    async def close(self) -> None:
        """Restart in order, sometimes without the index or without the state."""
        await self.broker.quiesce()
        may_forget = [[], [], ["consumequeue"]]
        if not self.broker.is_dead and self.restarts_when_full < self.broker.restart_count:
            # No fault occurred since the last start, so the log contains the whole state.
            may_forget += [["state"], ["consumequeue", "state"]]
        await self.broker.restart("close", forget=self.rng.choice(may_forget))

    async def kill(self) -> None:
        await self.broker.restart("kill")

    async def crash(self) -> None:
        forget = self.rng.choice(([], [], ["consumequeue"]))
        await self.broker.restart("crash", forget=forget)

    async def crash_and_overwrite(self) -> None:
        """Write over blocks that a crash cut; check that no cut block reappears after them."""
        size = SIZES[self.rng.randint(0, 2)]
        # Nothing large is repeated, and the next segment exists, so no roll waits for a sync.
        await self.broker.repeat_all()
        await self.broker.quiesce()
        endings: list[tuple[int, Ending]]
        endings = [(0, "close"), (6, "crash"), (self.rng.randint(1, 4), "kill")]
        for count, ending in endings:
            for _ in range(count):
                self._publish(size)
            if not await self.broker.all_written():
                return
            await self.broker.restart(ending, recovery_crashes=0, hold_syncs=True)

    # -- drawing ---------------------------------------------------------------------------

    def _publish(self, size: tuple[int, int] | None = None) -> Attempt | None:
        producer: Producer = self.rng.choice(self.broker.producers)
        return self.broker.publish(producer, *(size or self.rng.choice(self.sizes)))

    def _settle(self) -> "asyncio.Task[None]":
        held = self.broker.held.pop(self.rng.randrange(len(self.broker.held)))
        verbs = {Verb.ACK: 6, Verb.NACK: 1, Verb.RELEASE: 1, Verb.REJECT: 1}
        (verb,) = self.rng.choices(list(verbs), list(verbs.values()))
        return self.broker.settle(held, verb, delay_ms=self.rng.choice((0, 2_000)))

    def _queue(self) -> tuple[Plan, int]:
        plan = self.rng.choice(self.broker.plans)
        return plan, self.rng.randrange(plan.queue_count)


Operations = Mapping[Callable[[CrashRun], Awaitable[None]], int]
"""Operations and their weights."""

OPERATIONS: Operations = {
    CrashRun.publish: 30,
    CrashRun.publish_on: 20,
    CrashRun.consume: 15,
    CrashRun.cut_power_soon: 6,
    CrashRun.crash: 4,
    CrashRun.crash_and_overwrite: 2,
    CrashRun.kill: 3,
    CrashRun.close: 3,
    CrashRun.hold_syncs: 4,
    CrashRun.quiesce: 3,
    CrashRun.store_offsets: 4,
    CrashRun.receive: 10,
    CrashRun.settle: 6,
    CrashRun.settle_on: 3,
    CrashRun.let_time_pass: 3,
    CrashRun.seek: 1,
    CrashRun.leave: 1,
    CrashRun.search: 2,
    CrashRun.trim: 3,
    CrashRun.fill_disk: 2,
    CrashRun.fail_sync: 1,
    CrashRun.fail_write: 1,
    CrashRun.fail_read: 2,
    CrashRun.fail_segment: 1,
    CrashRun.fail_trim: 1,
    CrashRun.jump_clock: 3,
    CrashRun.expire: 2,
    CrashRun.add_topic: 1,
    CrashRun.churn_topic: 1,
}


async def run_seed(
    seed: int, directory: Path, *, steps: int = 60, operations: Operations = OPERATIONS
) -> SimulatedBroker:
    """Run one seed. A failure reports the seed and the operations so far."""
    # Two random sources: the number of broker restarts must not change the operations.
    broker = SimulatedBroker(directory, random.Random(f"broker {seed}"))
    run = CrashRun(broker, random.Random(f"run {seed}"), operations=operations)
    try:
        await run.run(steps)
    except BaseException as error:
        error.add_note(f"seed {seed}: {' '.join(run.trace)}")
        raise
    finally:
        broker.disk.discard()
    return run.broker
