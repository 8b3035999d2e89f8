"""Consumer groups with leases. The core is pure: no I/O, no clock, no locks.

`core/`, `cursor/` and `fairness/` are pure. `serving/` runs groups on the event loop, `storage/`
keeps them across restarts.
"""
