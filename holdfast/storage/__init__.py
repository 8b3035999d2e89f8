"""The storage of an open data directory: how it opens, its threads, its alarms and metrics."""
