"""LMDB environments: open, grow, commit in groups, and reopen after a fault."""
