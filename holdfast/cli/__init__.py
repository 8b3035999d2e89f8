"""The command line. `main.py` is its entry, and `exits.py` has the exit codes.

`commands/` has one file per command group, `input/` is what a user gives, `output/` is what the
commands print, and `process/` runs the broker. Large libraries are imported inside functions, so
that the help and the shell completion start fast.
"""
