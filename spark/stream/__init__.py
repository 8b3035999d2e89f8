"""A streaming read: offsets, limits, the driver's side, the progress stored in a group."""
