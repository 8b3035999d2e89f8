"""The commit log: every message of every topic, in batches, appended to segment files."""
