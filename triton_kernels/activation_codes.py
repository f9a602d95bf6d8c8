"""Codes of the activations: the one table in Python, without torch or triton, for every backend and its kernels.

They are `Activation` of csrc/activation.h; ReLU is LeakyReLU with slope 0.
"""

ELU = 0
LEAKY_RELU = 1
NAMES = ("elu", "leaky_relu")
"""Names by code."""
NONE = 2
"""No activation behind a layer, as behind the last one: Triton's fused kernels alone."""
