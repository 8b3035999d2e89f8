"""Access to the disk: files and their owners, the data directory and its lock."""
