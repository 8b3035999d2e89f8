"""Send the package to executors that lack it: the archive, and classes that unpack it."""
