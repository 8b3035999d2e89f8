"""A batch read: its plan, its tasks, and the filters that are pushed down."""
