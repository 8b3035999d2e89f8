"""Turns bytes into requests and replies into bytes: connections, TLS, heads, bodies, problems."""
