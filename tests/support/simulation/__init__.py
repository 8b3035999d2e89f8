"""The simulated broker: its disk, clock, process, clients and groups, and runs of it."""
