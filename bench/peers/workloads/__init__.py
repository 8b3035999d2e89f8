"""The workloads, in the order in which they run."""

from bench.peers.workload import Workload
from bench.peers.workloads.batches import BATCHES_1K, BATCHES_100
from bench.peers.workloads.latency import LATENCY
from bench.peers.workloads.singles import SINGLES

WORKLOADS: tuple[Workload, ...] = (BATCHES_100, BATCHES_1K, LATENCY, SINGLES)
