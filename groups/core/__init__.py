"""The rules of a group: members, fair shares, selection, order, leases and receipts. Pure."""
