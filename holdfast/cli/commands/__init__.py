"""The commands: one file per group of commands, and what only one command needs."""
