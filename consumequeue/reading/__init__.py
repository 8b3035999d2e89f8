"""Reads by offset, key and time: from memory, else from the index and the log."""
