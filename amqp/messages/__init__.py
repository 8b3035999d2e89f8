"""Messages of AMQP 1.0: their sections, and what Holdfast stores and shows of them. Pure."""
