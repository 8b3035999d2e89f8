"""Many clients at once, what they saw, and the checkers that judge it."""
