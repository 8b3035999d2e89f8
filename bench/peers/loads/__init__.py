"""Loads, one file per client library. Each load runs in its own process.

The loads of the peers run in the peers' virtual environment, which has neither Holdfast nor psutil.
So a load imports only `common` from the other files of this benchmark.
"""
