"""Topics and stored offsets: their records, their store, and their copy in the log."""
