"""The log as segment files: read, walk, recover, roll and seal them."""
