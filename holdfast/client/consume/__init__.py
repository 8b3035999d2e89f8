"""Consume in groups: membership, leases, handlers, acknowledgements, group requests."""
