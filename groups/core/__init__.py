"""The rules of a group: members, selection, order, leases and receipts. Pure."""
