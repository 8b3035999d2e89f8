"""The endpoints of groups with leases."""
