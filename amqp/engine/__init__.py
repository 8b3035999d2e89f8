"""The rules of AMQP 1.0 for connections, sessions and links, at both ends. Pure.

Bytes go in, events come out; commands go in, bytes come out. There is no clock, no socket and no
thread: the owner passes bytes and times, and sends what `take_output` returns.
"""
