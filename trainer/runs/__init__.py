"""What is on disk of a run: its directory, settings, checkpoints, metrics and policies."""
