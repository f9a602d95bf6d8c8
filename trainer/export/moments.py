"""Moment matching through an ELU network in operations that ONNX has: the action's std, for an exported policy.

ONNX has no erfcx, and onnxruntime no Erf in float64. Here erfcx is the polynomial that the C++ kernels use
(`csrc/generate_erfcx_coefficients.py`), and an activation is computed in float64, where the plain formulas are good
enough: for |mean| ≤ 20 and std in [1e-4, 10] the std of an ELU is within 2e-8 of the exact one, absolute. Weights and
products between layers are float32, as the network's.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from p3kernels.nn import mlp_layers

_KAPPA = 4.0
_ERFCX = (
    *(-6.5001981326945422e-4, 1.2504960573238095e-3, 1.5468117333464925e-3, -4.0448405590921804e-3),
    *(-2.86051016799622e-3, 7.9512263075900641e-3, 6.8131097842114791e-3, -1.2565221746688765e-2),
    *(-1.8665206942275251e-2, 1.3379409387873034e-2, 4.8252295943719715e-2, 1.5593570082435924e-2),
    *(-9.2390618372365769e-2, -1.6175782582995032e-1, -2.228391661955895e-2, 4.0915294740686602e-1),
    *(1.0394274837170962, 1.6440250911945035, 2.0031396172946497, 2.0194501004918031),
    *(1.7434108383815158, 1.314062533578243, 8.7487871567305999e-1, 5.1813609752034402e-1),
    1.369994576250614e-1,
)
"""In powers of t − 1/2, highest first, t = kappa / (kappa + b): `kErfcxValue_double` of csrc/erfcx_coefficients.h."""
_SMALLEST_VAR = 1e-20


def erfcx(b: Tensor) -> Tensor:
    """exp(b²) erfc(b) for b ≥ 0, float64."""
    t = _KAPPA / (_KAPPA + b) - 0.5
    value = torch.full_like(t, _ERFCX[0])
    for coefficient in _ERFCX[1:]:
        value = value * t + coefficient
    return value


def elu_moments(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of ELU(x), x ~ N(mean, var), float64; the notation is docs/derivation.md's."""
    var = var.clamp(min=_SMALLEST_VAR)
    std = var.sqrt()
    beta = mean / std
    density = torch.exp(-0.5 * beta * beta)
    # E[e^kx; x ≤ 0] for k = 0, 1, 2, from whichever tail is the small one; all at once, since each operation of so few
    # numbers costs a robot more than the numbers do.
    arguments = torch.stack([beta, beta + std, beta + 2.0 * std]) / math.sqrt(2)
    whole = torch.exp(torch.stack([0.0 * mean, mean + 0.5 * var, 2.0 * mean + 2.0 * var]).clamp(max=0.0))
    tails = 0.5 * density * erfcx(arguments.abs())
    below, exp_1, exp_2 = torch.where(arguments < 0, whole - tails, tails).unbind(0)
    above = torch.where(mean < 0, tails[0], 1.0 - tails[0])
    bell = std * density / math.sqrt(2 * math.pi)
    y_mean = mean * above + bell
    y_var = (mean * mean + var) * above + mean * bell - y_mean * y_mean
    u_mean = below - exp_1
    u_var = below - 2.0 * exp_1 + exp_2 - u_mean * u_mean
    return y_mean - u_mean, (y_var + u_var + 2.0 * y_mean * u_mean).clamp(min=0.0)


class ActionStd(nn.Module):
    """Std of a network's output by moment matching, as `p3kernels.mlp_moments`.

    Args:
        network: Linear layers with ELU (alpha 1) between them; not copied.

    Raises:
        ValueError: Another activation.
    """

    def __init__(self, network: nn.Sequential) -> None:
        super().__init__()
        layers = mlp_layers(network)
        if layers.activation != "elu" or layers.activation_parameter not in (None, 1.0):
            raise ValueError(f"--std: expected an actor with ELU, got {layers.activation}")
        self.linears = nn.ModuleList(module for module in network if isinstance(module, nn.Linear))

    def forward(self, mean: Tensor, var: Tensor) -> Tensor:
        """[B, A] of inputs with mean [B, I] and variance [B, J] of the last J inputs."""
        for index, linear in enumerate(self.linears):
            assert isinstance(linear, nn.Linear)
            if index:
                wide_mean, wide_var = elu_moments(mean.double(), var.double())
                mean, var = wide_mean.float(), wide_var.float()
            stochastic = linear.weight[:, linear.in_features - var.shape[1] :]
            mean, var = linear(mean), nn.functional.linear(var, stochastic * stochastic)
        return var.sqrt()
