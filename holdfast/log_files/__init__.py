"""The log's segment files, read without a broker: the catalog of a data directory, its blocks."""
