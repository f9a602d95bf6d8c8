"""Where a task runs. An engine fills `RobotState` and applies joint targets; it knows nothing of rewards."""
