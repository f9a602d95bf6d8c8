"""How a checkpoint's policy distribution is estimated, in numbers, tables and figures."""
