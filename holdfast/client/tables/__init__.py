"""Tables: ranges of a topic as Arrow tables and record batches. Needs pyarrow (extra `arrow`)."""
