"""Groups on the event loop: receive, wait, settle, dead letters, redrive."""
