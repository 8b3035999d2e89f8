"""Holdfast beside the brokers that its users would otherwise take, in one run on one machine.

    bench/peers/install            # once: the peers and their clients, into .peers/
    python -m bench.peers          # all workloads; --help lists them
    python -m bench.report         # tables and pictures of docs/performance.md

Every system is started on loopback with its own defaults, but for what makes the durability
comparable, and its settings are printed with the table. Loads are written as a user of that client
library would write them (bench/peers/loads/). Systems take turns: a round runs every system once,
and the table has the median of the rounds and their spread.

Two classes of durability, never mixed in one comparison:

- `written`: acknowledged once the operating system has it; a crash of the machine may lose it.
- `fsync`: acknowledged after a sync to the disk.
"""
