"""The broker's process: signals, exit code, and pauses of the garbage collector."""
