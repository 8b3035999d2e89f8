"""Groups: shared consumption with leases. The core is pure: no I/O, no clock, no locks."""
