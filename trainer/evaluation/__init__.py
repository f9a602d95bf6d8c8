"""Policies judged in episodes that are the same for each of them."""
