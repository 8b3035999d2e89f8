"""Requests to a broker from Spark: transport, blocks, catalog, read leases."""
