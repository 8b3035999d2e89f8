"""Backups: take a backup while a broker runs, verify it, restore it."""
