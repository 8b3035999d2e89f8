"""Clients that send any bytes or call plainly, and what they need: certificates, tokens."""
