"""P3PPO, an rsl_rl algorithm, the methods it trains, and the schedule of their estimators."""

from trainer.algorithms.methods import parse_method
from trainer.algorithms.p3_ppo import P3PPO
from trainer.algorithms.schedule import EstimatorSchedule

__all__ = ["P3PPO", "EstimatorSchedule", "parse_method"]
