"""The hold service: pulls that wait for messages, their filters and their deadlines."""
