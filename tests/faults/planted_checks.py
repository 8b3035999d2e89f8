"""The smallest checks that must raise AssertionError for a defect that shows without a crash."""

import asyncio
from pathlib import Path

import pytest

from holdfast.commitlog.format.batch_encoding import encode_batch
from holdfast.commitlog.format.batch_header import HEADER_SIZE
from holdfast.holdservice.config import HoldServiceConfig
from holdfast.http_api.endpoints.publish_batches import decode_batches
from holdfast.http_api.wire.problems import Problem
from tests.faults.damage.test_directory_entries import (
    test_every_name_is_synced_before_a_publish_is_acknowledged as every_name_is_synced,
)
from tests.holdservice.test_pull_request_hold_service import Q0, Broker, turn
from tests.support.damage.flipped_log import FlippedLog, FlippedReads

_KIB = 1024


async def no_wake_up_is_lost(directory: Path) -> None:
    """A message that arrives while a pull is being registered in the hold table wakes the pull."""
    broker = Broker(HoldServiceConfig(scan_interval_ms=3_600_000))
    pull = asyncio.create_task(broker.hold({Q0: 0}))
    await turn()
    broker.publish(Q0, "x")
    try:
        async with asyncio.timeout(5):
            await pull
    except TimeoutError:
        raise AssertionError("a pull slept through the arrival of its message") from None
    finally:
        await broker.service.stop()


async def no_flipped_bit_is_served(directory: Path) -> None:
    """Each bit of a block is flipped in turn; the check that every read uses refuses the block."""
    FlippedReads(FlippedLog(directory, 16 * _KIB)).every_bit_of(0)


async def no_flipped_bit_is_taken_in(directory: Path) -> None:
    """A batch that was damaged in transit is not stored."""
    raw = bytearray(encode_batch([b"as it was sent"]))
    raw[HEADER_SIZE + 8] ^= 1
    try:
        decode_batches(bytes(raw), 10, 10)
    except Problem:
        return
    raise AssertionError("a damaged batch was taken in")


async def no_flipped_footer_is_believed(directory: Path) -> None:
    """A footer with a flipped bit in its tables is not used."""
    log = FlippedLog(directory, 16 * _KIB)
    region = next(region for region in log.regions if region.name == "footer: blocks")
    log.start(region.path, region.bits[40])


async def nothing_durable_is_cut(directory: Path) -> None:
    """Damage in the middle of the log is kept, with everything after it."""
    log = FlippedLog(directory, 16 * _KIB)
    region = [region for region in log.regions if region.name == "bodies"][3]
    log.start(region.path, region.bits[0])


async def every_name_is_durable(directory: Path) -> None:
    """Every file name that a broker relies on is synced before it acknowledges a message."""
    with pytest.MonkeyPatch.context() as patch:
        await every_name_is_synced(directory, patch)
