"""Logs, batches and data directories for tests, and real input."""
