"""Holdfast as a Spark data source."""
