"""Clients that are many, slow, hostile or refused, and the memory that they cost."""
