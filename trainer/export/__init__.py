"""Policies as files that need no torch."""
