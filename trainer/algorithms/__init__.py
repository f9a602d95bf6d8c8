"""P3PPO, an rsl_rl algorithm, and the schedule of its estimators."""

from trainer.algorithms.p3_ppo import P3PPO
from trainer.algorithms.schedule import EstimatorSchedule, Method

__all__ = ["P3PPO", "EstimatorSchedule", "Method"]
