"""Files that are damaged, truncated, missing or replaced."""
