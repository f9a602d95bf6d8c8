"""The MuJoCo models of the robots, and how a `RobotState` is read from them: for native MuJoCo, mjlab and PhysX."""
