"""Read the log's segment files without a broker: the catalog of a data directory, and the rows."""
