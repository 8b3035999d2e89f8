"""Fakes and helpers that several tests share."""
