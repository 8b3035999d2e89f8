"""Which topic of a group is served next: start-time fair queueing and deficit round robin. Pure."""
