"""Channels: callbacks in threads of the program, over one AMQP connection that is restored."""
