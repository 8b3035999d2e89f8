"""The endpoints: publish, pull, receive, settle, look-ups, topics, groups, operations."""
