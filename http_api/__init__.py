"""The HTTP face of the broker."""
