"""What AMQP makes and deletes for links: subscriptions of topics."""
