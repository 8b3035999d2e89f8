"""What addresses, sources and targets of AMQP mean to Holdfast: topics, queues and groups."""
