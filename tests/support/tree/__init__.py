"""What is read from the source tree: its modules, counts, public contract and pages."""
