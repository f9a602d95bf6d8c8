"""The networks: encoder, decoder, actor, as rsl_rl models."""

from trainer.models.p3_actor import P3Actor

__all__ = ["P3Actor"]
