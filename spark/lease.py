"""Keeping what is planned from retention while tasks read it.

The broker grants leases with a plan (`BrokerClient.splits`); every task that reads a part of the
plan extends all of them, so that those that still wait for their turn find their rows, too.
Nothing fails for want of a lease: what it would have kept may then be lost, which is said when it
is read (DataLost).
"""

import logging
import threading
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from holdfast.spark.address import Address
from holdfast.spark.broker_client import BrokerClient
from holdfast.spark.errors import SparkError
from holdfast.spark.offsets import PlanLease, QueueRange

#: A task's end waits for what is under way: a broker that is silent for longer is asked later.
_TIMEOUT_S = 5.0

_log = logging.getLogger("holdfast.spark")


def due_in_s(lease: PlanLease, now_s: float) -> float:
    """Return in how many seconds a plan's leases are to be extended: when half of them is over.

    At once where the clocks of driver and executor do not agree.
    """
    passed_s = now_s - lease.taken_at_s
    half_s = lease.lease_ms / 2000
    return half_s - passed_s if 0 <= passed_s < half_s else 0.0


class LeaseKeeper:
    """Extends the leases of a plan from a thread of its own, as long as its context lasts."""

    def __init__(self, parts: Iterable[QueueRange], address: Address | None) -> None:
        self._lease = next((part.lease for part in parts if part.lease is not None), None)
        self._address = address
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._lease is not None and self._address is not None:
            self._thread = threading.Thread(
                target=self._run, args=(self._lease, self._address), name="holdfast-lease"
            )
            self._thread.daemon = True  # a worker that is told to end does not wait for it
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, lease: PlanLease, address: Address) -> None:
        half_s = lease.lease_ms / 2000
        alive = lease.ids
        wait_s = due_in_s(lease, time.time())
        while alive and not self._stopped.wait(wait_s):
            wait_s = half_s
            with BrokerClient.open(address, retry_for_s=0, timeout_s=_TIMEOUT_S) as client:
                try:
                    alive = tuple(
                        each
                        for each in alive
                        if self._stopped.is_set() or client.extend_lease(*each, lease.lease_ms)
                    )
                except SparkError as error:
                    wait_s = half_s / 4
                    _log.info("a lease is not extended yet, again in %.1f s: %s", wait_s, error)
