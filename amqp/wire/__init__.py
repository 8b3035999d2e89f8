"""The bytes of AMQP 1.0: types, performatives, frames and message sections. Pure."""
