"""The progress of one group in one queue: leases, settled offsets, and their rows. Pure."""
