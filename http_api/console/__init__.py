"""The console: a page for browsers, without a build step, that uses only the HTTP API."""
