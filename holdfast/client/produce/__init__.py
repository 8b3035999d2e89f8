"""Publish: gather messages into batches, send these in order, and repeat them safely."""
