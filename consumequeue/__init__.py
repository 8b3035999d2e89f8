"""The consume queues: an index a queue over the log, and the look-ups in it."""
