"""Read by offset: pulls, messages, readers, and consumers that store offsets."""
