"""Native MuJoCo on CPU threads: the default engine."""
