"""Requests and replies over HTTP/1.1, asyncio and blocking: connections, retries, TLS."""
