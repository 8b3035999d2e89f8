"""Retention, read leases, the scrub, and the check for damage at a start."""
