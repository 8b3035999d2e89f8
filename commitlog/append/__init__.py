"""Appending: the appender thread, the sync thread, and the sequence numbers of producers."""
