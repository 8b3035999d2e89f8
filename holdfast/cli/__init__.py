"""The command line: one file a command group. Heavy libraries are imported where they are used."""
