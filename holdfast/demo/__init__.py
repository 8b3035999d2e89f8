"""The demonstration: real input from publisher to waiting consumer to Spark, and a kill -9."""
