"""The consume queues: per-queue indexes over the log, built by the reput thread, and the look-ups."""
