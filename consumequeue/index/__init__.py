"""Where each message lies: the queues in memory, the index in LMDB, and reput, which fills both."""
