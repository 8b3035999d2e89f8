"""Benchmarks: each starts a broker of its own, measures, and prints a table or JSON lines.

They are never timed tests. Every figure names its durability mode, and stands beside a plain
loop of Python on the same machine in the same run.
"""
