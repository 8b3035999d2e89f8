"""The options of reads, streams and writes: parse and check them."""
