"""The demonstration: real input, a waiting consumer, a kill -9, a replay, and Spark."""
