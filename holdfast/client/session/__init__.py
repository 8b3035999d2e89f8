"""Sessions: sending and receiving over links of AMQP 1.0, with credit."""
