"""The ranges of offsets that are damaged or gone: recorded once, kept in the state."""
