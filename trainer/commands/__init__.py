"""The subcommands of `p3`: each parses its arguments, calls the room that does the work, and prints."""
