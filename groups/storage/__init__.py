"""Groups across restarts: cursors in LMDB, the progress page, group records, restoring."""
