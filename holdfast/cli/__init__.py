"""The command line: one file per command group. Large libraries are imported inside functions."""
