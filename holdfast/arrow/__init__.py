"""Stored blocks and single messages as Arrow record batches, for Spark and for tables."""
