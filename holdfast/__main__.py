"""`python -m holdfast` runs the command `holdfast`."""

from holdfast.cli.main import main

main(prog_name="holdfast")
