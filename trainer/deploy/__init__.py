"""What a robot's process imports: an exported policy, with numpy and onnxruntime alone."""

from trainer.deploy.latency import Latency
from trainer.deploy.package import DamagedPolicy, ForeignPolicy
from trainer.deploy.policy import Action, Policy, gravity_of

__all__ = ["Action", "DamagedPolicy", "ForeignPolicy", "Latency", "Policy", "gravity_of"]
