"""Benchmarks. Each one starts its own broker, measures it, and prints a table or JSON lines.

No test depends on their times. Every figure is printed with its durability mode, and with the time
of a plain Python loop on the same machine in the same run.
"""
