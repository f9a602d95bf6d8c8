"""The steps of the check: one file a kind, each a function from a task to its cases."""
