"""Appending: the appender, the sync thread, and the sequence numbers of producers."""
