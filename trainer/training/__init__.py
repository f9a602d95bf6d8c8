"""The training loop and what surrounds it: processes, progress, recovery, interruption."""
