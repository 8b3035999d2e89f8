"""Backups: taking one beside a running broker, verifying it, putting it back."""
