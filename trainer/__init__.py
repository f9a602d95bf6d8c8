"""The P³ PPO trainer, and the `p3` command."""
