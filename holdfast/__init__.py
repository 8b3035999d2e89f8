"""Holdfast: a log-structured message broker with long polling."""

__version__ = "0.1.0"
