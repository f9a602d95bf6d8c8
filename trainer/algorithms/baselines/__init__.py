"""The paper's baselines, one file each. All train by `P3PPO` with the same settings, critic and task."""
