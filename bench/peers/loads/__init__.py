"""Loads, one file a client library, each run as a process of its own with that library's Python.

They import nothing of the harness but `common`, since a peer's Python has neither Holdfast nor
psutil.
"""
