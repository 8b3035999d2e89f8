"""Consumer groups with leases. The core is pure: no I/O, no clock, no locks.

`core/` and `cursor/` are pure. `serving/` runs groups on the event loop, `storage/` keeps them
across restarts.
"""
