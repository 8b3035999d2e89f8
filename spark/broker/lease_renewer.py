"""Protect planned ranges from retention while tasks read them.

The broker grants leases with a plan (`BrokerClient.splits`). Every running task extends all leases
of the plan, so that tasks that start later still find their rows. A missing lease alone causes no
error. But retention may then delete rows, and reading deleted rows raises DataLost.
"""

import logging
import threading
import time
from collections.abc import Iterable
from typing import Self

from holdfast.spark.broker.client import BrokerClient
from holdfast.spark.errors import SparkError
from holdfast.spark.options.location import Address
from holdfast.spark.options.offsets import PlanLease, QueueRange

#: Timeout of one request. It is short because the end of the task waits for it.
_TIMEOUT_S = 5.0

_log = logging.getLogger("holdfast.spark")


def renewal_delay_s(lease: PlanLease, now_s: float) -> float:
    """Return the seconds until a plan's leases must be extended: half of `lease_ms` after they were
    granted. Return 0 if that time has passed, or if the clocks of driver and executor disagree."""
    passed_s = now_s - lease.taken_at_s
    half_s = lease.lease_ms / 2000
    return half_s - passed_s if 0 <= passed_s < half_s else 0.0


class PlanLeaseRenewer:
    """A context manager. From entry to exit, a separate thread extends the leases of a plan."""

    def __init__(self, parts: Iterable[QueueRange], address: Address | None) -> None:
        self._lease = next((part.lease for part in parts if part.lease is not None), None)
        self._address = address
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._lease is not None and self._address is not None:
            self._thread = threading.Thread(
                target=self._run,
                args=(self._lease, self._address),
                name="holdfast-lease",
                daemon=True,  # so that a worker can exit without waiting for it
            )
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, lease: PlanLease, address: Address) -> None:
        half_s = lease.lease_ms / 2000
        alive = lease.ids
        wait_s = renewal_delay_s(lease, time.time())
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
                    _log.info("a lease was not extended, next try in %.1f s: %s", wait_s, error)
