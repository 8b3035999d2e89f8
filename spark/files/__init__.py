"""Reading the log's segment files without a broker: what is in them, and the rows themselves."""
