"""Consume queues: one index per queue over the log, and the look-ups in these indexes.

`index/` and `state/` store data in LMDB, through `lmdb_env/`. `reading/` reads messages. `damage/`
records lost messages. `maintenance/` deletes old messages and verifies files.
"""
