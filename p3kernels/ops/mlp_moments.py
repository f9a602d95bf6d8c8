"""`mlp_moments`: moments through a whole MLP; its operators also serve `linear_elu_moments`."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from p3kernels import checks, reference
from p3kernels.activations import Activation, resolve_activation
from p3kernels.backends import choose_backend, cuda_in_tritons_place
from p3kernels.cuda import native as cuda
from p3kernels.cuda import one_launch
from p3kernels.layered import mlp_moments as layered
from p3kernels.ops.linear_moments import check_linear
from p3kernels.ops.register import Kernels, Operators
from p3kernels.records import (
    Backward,
    Gradients,
    MlpMomentsInputs,
    MlpMomentsOutputs,
    map_tensors,
    result_dtype,
)

Request = Backward[MlpMomentsInputs, MlpMomentsOutputs]


def _fake(inputs: MlpMomentsInputs) -> MlpMomentsOutputs:
    rows, dtype = inputs.mean.shape[0], result_dtype(inputs.mean)
    out = inputs.mean.new_empty(rows, inputs.weights[-1].shape[0], dtype=dtype)
    kept = 2 * rows * sum(inputs.activated) if inputs.save else 0
    return MlpMomentsOutputs(out, torch.empty_like(out), out.new_empty(kept))


def _cuda_forward(inputs: MlpMomentsInputs) -> MlpMomentsOutputs:
    if not inputs.save and one_launch.moments_fit(inputs.mean, inputs.weights):
        return one_launch.mlp_moments(inputs)
    return layered.forward(map_tensors(inputs, Tensor.float), cuda, max(inputs.mean.shape[0], 1))


def _cuda_backward(request: Request) -> Gradients:
    request = dataclasses.replace(request, inputs=map_tensors(request.inputs, Tensor.float))
    return layered.backward(request, cuda, max(request.inputs.mean.shape[0], 1))


def _triton() -> Any:
    return importlib.import_module("triton_kernels.mlp_moments")  # triton is not imported with the package


def _triton_forward(inputs: MlpMomentsInputs) -> MlpMomentsOutputs:
    return MlpMomentsOutputs(
        *_triton().forward(
            mean=inputs.mean,
            var=inputs.var,
            weights=inputs.weights,
            biases=inputs.biases,
            kind=inputs.activation_code,
            parameter=inputs.activation_parameter,
            activate_last=inputs.activate_last,
            save=inputs.save,
            precision=inputs.precision,
        )
    )


def _triton_fake(inputs: MlpMomentsInputs) -> MlpMomentsOutputs:
    out = _fake(inputs)
    outputs = [weight.shape[0] for weight in inputs.weights]
    rows, width, stochastic = inputs.mean.shape[0], inputs.mean.shape[1], inputs.var.shape[1]
    kept = 0
    if inputs.save:
        kept = _triton().saved_size(rows, width, stochastic, outputs, inputs.activate_last, inputs.precision)
    return MlpMomentsOutputs(out.mean, out.var, out.mean.new_empty(kept))


def _triton_backward(request: Request) -> Gradients:
    inputs, wanted = request.inputs, request.wanted
    d_mean, d_var, d_weights, d_biases = _triton().backward(
        d_out_mean=request.d_outputs.mean,
        d_out_var=request.d_outputs.var,
        mean=inputs.mean,
        var=inputs.var,
        weights=inputs.weights,
        biases=inputs.biases,
        saved=request.outputs.kept,
        kind=inputs.activation_code,
        parameter=inputs.activation_parameter,
        activate_last=inputs.activate_last,
        need_inputs=("mean" in wanted, "var" in wanted),
        need_parameters=not wanted.isdisjoint({"weights", "biases"}),
        precision=inputs.precision,
    )
    return {"mean": d_mean, "var": d_var, "weights": d_weights, "biases": d_biases}


_OPERATORS = Operators(
    "mlp_moments",
    MlpMomentsInputs,
    MlpMomentsOutputs,
    fake=_fake,
    kernels={
        "cpu": Kernels(layered.forward, layered.backward),
        "cuda": Kernels(_cuda_forward, _cuda_backward),
        "triton": Kernels(_triton_forward, _triton_backward, _triton_fake),
    },
    differentiable=("mean", "var", "weights", "biases"),
    saved=("kept",),
    kept=("kept",),
)


def wants_gradient(*tensors: Tensor | None) -> bool:
    """Whether a gradient of any of these can be asked for."""
    return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)


def run_mlp_moments(
    backend: str,
    mean: Tensor,
    var: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None],
    activation: Activation,
    *,
    activate_last: bool,
    precision: str,
) -> tuple[Tensor, Tensor]:
    """The operator of a backend on checked arguments, saving for backward only where a gradient can be asked for."""
    pairs = zip(weights, biases, strict=True)
    inputs = MlpMomentsInputs(
        mean=mean,
        var=var,
        weights=list(weights),
        biases=[weight.new_zeros(0) if bias is None else bias for weight, bias in pairs],
        activation_code=activation.code,
        activation_parameter=activation.parameter,
        activate_last=activate_last,
        save=wants_gradient(mean, var, *weights, *biases),
        precision=precision,
    )
    out = _OPERATORS(backend, inputs)
    return out.mean, out.var


@checks.full_precision
def mlp_moments(
    mean: Tensor,
    var: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None],
    activation: str = "elu",
    activation_parameter: float | None = None,
    *,
    precision: str | None = None,
    backend: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Mean and variance of an MLP's output for independent inputs x ~ N(mean, var); the last layer is linear.

    Between layers the units are taken as independent Gaussians with the moments computed so far (moment matching).

    Args:
        mean: [B, I], float32 or float64 (triton, cuda: float32 or bfloat16, computed in float32).
        var: [B, J], J ≤ I: the last J inputs are stochastic, the first I − J are not.
        weights: One [O, I] a layer.
        biases: One [O] or None a layer.
        activation: "elu", "relu" or "leaky_relu", between layers.
        activation_parameter: ELU's alpha or LeakyReLU's slope; None for torch's default.
        precision: How Triton's products round: "ieee", "tf32x3", "tf32", "bf16" (`triton_kernels/kernels/dot.py` has
            the error of each); None follows `torch.set_float32_matmul_precision`.
        backend: None to choose, or "reference", "cpu", "triton", "cuda".

    Returns:
        Mean and variance [B, O], differentiable in every tensor, twice on the reference backend.
    """
    chosen = choose_backend(backend, mean, var, weights, biases)
    check_linear(mean, var, chosen)
    checks.check_layers(mean.shape[1], "mean", mean, weights, biases, chosen)
    between = resolve_activation(activation, activation_parameter)
    dots = checks.dot_precision(precision, chosen)
    if chosen == "reference":
        return reference.mlp_moments(mean, var, weights, biases, activation=between)

    def fits() -> bool:
        exact = dots == "ieee" and not wants_gradient(mean, var, *weights, *biases)
        return exact and one_launch.moments_before_triton(mean, weights)

    chosen = cuda_in_tritons_place(chosen, backend, fits)
    return run_mlp_moments(chosen, mean, var, weights, biases, between, activate_last=False, precision=dots)
