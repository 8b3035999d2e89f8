"""The operations of the seeded runs as a hypothesis state machine, which shrinks failures."""

import asyncio
import os
import random
import shutil
import tempfile
from collections.abc import Coroutine
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from holdfast.groups.service_types import Verb
from tests.faults.conftest import NEEDED_BYTES
from tests.support.simulation.crash_run import SIZES
from tests.support.simulation.simulated_broker import SimulatedBroker
from tests.support.simulation.simulated_clients import Plan, Producer
from tests.support.simulation.simulated_groups import MEMBERS
from tests.support.simulation.simulated_process import Ending
from tests.support.storage.memory_folder import folder_in_memory

_EXAMPLES = int(os.environ.get("TEST_EXAMPLES", "10"))
_STEPS = 25

_numbers = st.integers(0, 7)
_sizes = st.sampled_from(SIZES)
_endings: st.SearchStrategy[Ending] = st.sampled_from(("close", "kill", "crash"))


class CrashMachine(RuleBasedStateMachine):
    """One broker under the operations that hypothesis chooses. Each restart is checked."""

    def __init__(self) -> None:
        super().__init__()
        base = folder_in_memory(NEEDED_BYTES)
        self._directory = Path(tempfile.mkdtemp(prefix="holdfast-", dir=base))
        self._runner = asyncio.Runner()
        self._failed = False

    @initialize(seed=st.integers(0, 2**32 - 1))
    def start(self, seed: int) -> None:
        self.broker = SimulatedBroker(self._directory, random.Random(seed))
        self._run(self.broker.open())
        for durability in ("fsync", "written"):
            plan = self._runner.run(self.broker.create_topic(2, durability))
            for queue in (0, 1, None):
                self.broker.add_producer(plan, queue, idempotent=True)
            self.broker.add_producer(plan, 0, idempotent=False)
        self._run(self.broker.create_group())

    @rule(number=_numbers, size=_sizes)
    def publish(self, number: int, size: tuple[int, int]) -> None:
        self._run(self._published(number, size))

    @rule(numbers=st.lists(_numbers, min_size=1, max_size=4), size=_sizes)
    def publish_without_waiting(self, numbers: list[int], size: tuple[int, int]) -> None:
        for number in numbers:
            self._run(self._sent_off(number, size))

    @rule(number=_numbers, most=st.sampled_from((1, 10, 1000)))
    def consume(self, number: int, most: int) -> None:
        plan, queue = self._queue(number)
        self._run(self.broker.consume(plan, queue, most))

    @rule(number=_numbers)
    def store_offsets(self, number: int) -> None:
        self._run(self.broker.store_offsets(self._queue(number)[0]))

    @rule(member=st.sampled_from(MEMBERS), most=st.sampled_from((1, 10, 1000)))
    def receive(self, member: str, most: int) -> None:
        self._run(self.broker.receive(member, most))

    @rule(
        verb=st.sampled_from((Verb.ACK, Verb.NACK, Verb.RELEASE, Verb.REJECT)), waits=st.booleans()
    )
    def settle(self, verb: Verb, waits: bool) -> None:
        if self.broker.held:
            self._run(self._settled(verb, waits))

    @rule(number=_numbers, offset=st.sampled_from((0, 1, 5)))
    def seek(self, number: int, offset: int) -> None:
        self._run(self.broker.seek(*self._queue(number), offset))

    @rule(seconds=st.sampled_from((0.5, 8.0)))
    def let_time_pass(self, seconds: float) -> None:
        self.broker.let_time_pass(seconds)

    @rule(size=st.sampled_from((1, 500_000)))
    def trim(self, size: int) -> None:
        self._run(self.broker.trim(size))

    @rule(ending=_endings, forget=st.sampled_from(([], ["consumequeue"])))
    def restart(self, ending: Ending, forget: list[str]) -> None:
        self._run(self.broker.restart(ending, forget=forget))

    @rule(changes=st.integers(0, 12))
    def cut_power_soon(self, changes: int) -> None:
        self.broker.disk.freeze_after(changes)

    @rule()
    def hold_syncs(self) -> None:
        self.broker.disk.hold_syncs()

    @rule(after=st.integers(0, 3))
    def fail_sync(self, after: int) -> None:
        self.broker.disk.fail("sync", after=after)

    @rule(after=st.integers(0, 3), share=st.floats(0, 1))
    def fail_write(self, after: int, share: float) -> None:
        self.broker.disk.fail("write", after=after, share=share)

    @rule(is_full=st.booleans())
    def fill_disk(self, is_full: bool) -> None:
        self.broker.disk.full = is_full

    async def _published(self, number: int, size: tuple[int, int]) -> None:
        await self.broker.wait_for(self.broker.publish(self._producer(number), *size))

    async def _settled(self, verb: Verb, waits: bool) -> None:
        task = self.broker.settle(self.broker.held.pop(), verb)
        await (task if waits else asyncio.sleep(0))

    async def _sent_off(self, number: int, size: tuple[int, int]) -> None:
        self.broker.publish(self._producer(number), *size)
        await asyncio.sleep(0)  # until the request is in the appender's queue

    def _producer(self, number: int) -> Producer:
        return self.broker.producers[number]

    def _queue(self, number: int) -> tuple[Plan, int]:
        return self.broker.plans[number % 2], number // 2 % 2

    def _run(self, operation: Coroutine[object, object, object]) -> None:
        async def run() -> None:
            await operation
            await self._mend()

        try:
            self._runner.run(run())
        except BaseException:
            self._failed = True
            raise

    async def _mend(self) -> None:
        while self.broker.is_dead:
            await self.broker.restart("crash")

    def teardown(self) -> None:
        try:
            if hasattr(self, "broker"):
                self._runner.run(self._end())
        finally:
            self._runner.close()
            shutil.rmtree(self._directory)

    async def _end(self) -> None:
        try:
            if not self._failed:
                self.broker.disk.mend()
                await self.broker.quiesce()
                await self._mend()
                await self.broker.finish()
        finally:
            await self.broker.abandon()


@pytest.mark.hypothesis
def test_no_sequence_of_operations_breaks_a_promise() -> None:
    run_state_machine_as_test(
        CrashMachine,
        settings=settings(
            max_examples=_EXAMPLES,
            stateful_step_count=_STEPS,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
            print_blob=True,
        ),
    )
