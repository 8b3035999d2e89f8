"""The commit log: every message of every topic, in batches, appended to segment files.

`format/` defines the bytes of batches and segments, `segments/` manages the segment files,
`append/` adds messages to them, and `disk/` accesses files and the data directory.
"""
