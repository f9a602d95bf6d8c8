"""The network and the sizes that everything here is stated for: the G1 actor, a training minibatch, a rollout."""

from __future__ import annotations

ACTOR = (209, 512, 256, 128, 29)
"""The widths of the G1 actor."""
STOCHASTIC = 110
"""Stochastic inputs, the last ones."""
PROPRIO, SCAN, PROPRIO_LATENT = 96, 187, 10
"""Columns of a proprioception and of a height scan; of the stochastic inputs those that come of the history."""
TRAINING_ROWS, ROLLOUT_ROWS = 24576, 4096
NUM_SAMPLES = 15
PRECISIONS = ("ieee", "tf32x3", "tf32", "bf16")
