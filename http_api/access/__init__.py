"""Access control: who calls, what the caller may do, and the audit log of what was done."""
