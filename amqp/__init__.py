"""AMQP 1.0: its bytes, its rules, and its place in the broker.

`wire/` encodes and decodes; `engine/` keeps the state of connections, sessions and links;
`messages/` reads the sections of messages. They are pure, and serve both ends of a connection;
a reader needs only the specification. `nodes/` maps addresses to topics and groups. The files of
this folder serve connections: `listener.py` listens, `protocol.py` has one connection, and
`sessions.py` its sessions and links.
"""
