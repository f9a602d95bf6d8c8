"""Native MuJoCo on CPU threads: the default engine."""

from trainer.engines.mujoco.engine import MujocoEngine

__all__ = ["MujocoEngine"]
