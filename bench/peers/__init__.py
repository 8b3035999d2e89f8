"""Compare Holdfast with other brokers, in one run on one machine.

    bench/peers/install            # once: the peers and their clients, into .peers/
    python -m bench.peers          # all workloads; --help lists them
    python -m bench.report         # tables and pictures of docs/performance/

Every system runs on loopback with its own defaults, except for settings that make the durability
comparable. The settings are printed with the table. A load (bench/peers/loads/) uses a system's
client library as an ordinary user would. A round runs every system once, one after the other; the
table has the median and the spread of the rounds.

There are two classes of durability, which are never mixed in one comparison:

- `written`: a message is acknowledged once the operating system has it; a crash of the machine may
  lose the message.
- `fsync`: a message is acknowledged after a sync to the disk.
"""
