"""What runs on an event loop, and when: clocks, gates, tasks, objects that were freed."""
