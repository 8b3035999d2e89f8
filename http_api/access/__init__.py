"""Access control: who calls, what the caller may do, and the audit and access logs."""
