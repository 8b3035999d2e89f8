"""The sink: convert rows to batches, and publish them so that a repeated task adds nothing."""
