"""A G1 in MuJoCo that speaks the robot's protocol: what a user tries before the robot. Needs no torch."""
