"""Limits of what one client may use: request rates, publish rates, slots for large replies."""
