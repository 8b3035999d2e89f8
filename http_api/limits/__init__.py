"""Limits of what one client may use: request rates, publish rates, turns for large replies."""
