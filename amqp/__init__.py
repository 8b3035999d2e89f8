"""AMQP 1.0: its bytes, its rules, and its place in the broker.

`wire/` encodes and decodes; `engine/` keeps the state of connections, sessions and links;
`messages/` reads the sections of messages. These are pure, serve both ends of a connection, and can
be read with the specification alone. `nodes/` says what addresses mean to Holdfast. The files of
this folder serve connections: `listener.py` listens, `protocol.py` has one connection, and
`sessions.py` its sessions and links.
"""
