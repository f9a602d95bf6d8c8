"""`mlp_mixture_log_prob`: the Monte Carlo likelihood of a latent-conditioned MLP policy."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from p3kernels import checks, reference
from p3kernels.activations import resolve_activation
from p3kernels.backends import choose_backend, cuda_in_tritons_place
from p3kernels.cuda import native as cuda
from p3kernels.cuda import one_launch
from p3kernels.cuda.latent_noise import DeviceNoiseSource
from p3kernels.layered import mlp_mixture_log_prob as layered
from p3kernels.ops.latent_noise import check_rows, seed_tensor
from p3kernels.ops.mixture_log_prob import check_action
from p3kernels.ops.mlp_moments import wants_gradient
from p3kernels.ops.register import Kernels, Operators
from p3kernels.records import Backward, Gradients, MlpMixtureInputs, MlpMixtureOutputs, map_tensors, result_dtype
from p3kernels.reference.latent_noise import (
    SAMPLING,
    SHIFT_STREAM,
    latent_noise,
    normal,
    shifted_normals,
    sobol_points,
)

Request = Backward[MlpMixtureInputs, MlpMixtureOutputs]

CUDA_TILE_ROWS = 65536
"""Rows of a tile, samples × rows of the batch, layer by layer; the G1 actor's activations of so many are 240 MB."""


def _fake(inputs: MlpMixtureInputs, kept: int = 0) -> MlpMixtureOutputs:
    out = inputs.action.new_empty(inputs.action.shape[0], dtype=result_dtype(inputs.action))
    return MlpMixtureOutputs(out, out.new_empty(kept))


def _cpu_fake(inputs: MlpMixtureInputs) -> MlpMixtureOutputs:
    kept = layered.kept_size(inputs.action.shape[0], inputs.num_samples, inputs.weights) if inputs.save else 0
    return _fake(inputs, kept)


def _cpu_forward(inputs: MlpMixtureInputs) -> MlpMixtureOutputs:
    return layered.forward(layered.Problem(inputs))


def _cpu_backward(request: Request) -> Gradients:
    return layered.backward(layered.Problem(request.inputs), request)


def _cuda_problem(inputs: MlpMixtureInputs) -> layered.Problem:
    in_float32 = map_tensors(inputs._replace(save=False), Tensor.float)  # nothing is kept: memory is short on a GPU
    return layered.Problem(in_float32, cuda, DeviceNoiseSource, CUDA_TILE_ROWS)


def _cuda_forward(inputs: MlpMixtureInputs) -> MlpMixtureOutputs:
    if one_launch.likelihood_fits(inputs):
        return one_launch.mlp_mixture_log_prob(inputs)
    return layered.forward(_cuda_problem(inputs))


def _cuda_backward(request: Request) -> Gradients:
    return layered.backward(_cuda_problem(request.inputs), request)


def _triton() -> Any:
    return importlib.import_module("triton_kernels.mlp_mixture_log_prob")  # triton is not imported with the package


def _triton_problem(inputs: MlpMixtureInputs) -> Any:
    device = inputs.action.device
    # Filled on the device: no copy from the host that a CUDA graph could not capture.
    seed = inputs.seed if inputs.seed.device == device else torch.full((1,), int(inputs.seed), device=device)
    drawn_outside = inputs.noise is None and inputs.sampling == "sobol" and inputs.latent_mean.shape[1] > 0
    return _triton().Problem(
        action=inputs.action.contiguous(),
        context=inputs.context,
        latent_mean=inputs.latent_mean.contiguous(),
        latent_std=inputs.latent_std.contiguous(),
        weights=inputs.weights,
        biases=[bias.contiguous() for bias in inputs.biases],
        std=inputs.std.contiguous(),
        noise=inputs.noise,
        noise_of_tile=_sobol_noise(inputs) if drawn_outside else None,
        seed=seed,
        rows=inputs.rows,
        num_samples=inputs.num_samples,
        antithetic=inputs.sampling == "antithetic",
        activation=inputs.activation_code,
        parameter=inputs.activation_parameter,
        precision=inputs.precision,
    )


def _sobol_noise(inputs: MlpMixtureInputs) -> Callable[[int, int, int, int], Tensor]:
    """Noise [n, R, Z] of a tile (first sample, end, first row, end), by torch: its tails need float64."""
    batch, columns = inputs.latent_mean.shape
    device = inputs.action.device
    numbers = batch if inputs.rows is None else inputs.rows
    points = sobol_points(inputs.seed, inputs.num_samples, columns).to(device)[:, None]
    shift = normal(inputs.seed.to(device), SHIFT_STREAM, 1, numbers, columns, device)

    def tile(first: int, last: int, begin: int, end: int) -> Tensor:
        return shifted_normals(points[first:last], shift[:, begin:end]).float()

    return tile


def _triton_forward(inputs: MlpMixtureInputs) -> MlpMixtureOutputs:
    log_prob = _triton().forward(_triton_problem(inputs))
    return MlpMixtureOutputs(log_prob, torch.empty_like(log_prob[:0]))


def _triton_backward(request: Request) -> Gradients:
    log_prob, d_log_prob = request.outputs.log_prob, request.d_outputs.log_prob
    return vars(_triton().backward(_triton_problem(request.inputs), log_prob, d_log_prob, "noise" in request.wanted))


_OPERATORS = Operators(
    "mlp_mixture_log_prob",
    MlpMixtureInputs,
    MlpMixtureOutputs,
    fake=_fake,
    kernels={
        "cpu": Kernels(_cpu_forward, _cpu_backward, _cpu_fake),
        "cuda": Kernels(_cuda_forward, _cuda_backward),
        "triton": Kernels(_triton_forward, _triton_backward),
    },
    differentiable=("action", "context", "latent_mean", "latent_std", "weights", "biases", "std", "noise"),
    saved=("log_prob", "kept"),
    kept=("kept",),
)


def _check_rows(action: Tensor, others: Mapping[str, Tensor], backend: str) -> None:
    """Matrices with a row for every action."""
    batch = action.shape[0]
    for name, tensor in others.items():
        checks.check_tensor(name, tensor, 2, backend)
        checks.check_like(name, tensor, "action", action, backend)
        if tensor.shape[0] != batch:
            raise ValueError(f"{name}: expected {batch} rows, as action has, got {checks.shape_text(tensor.shape)}")


def _check_outputs(weights: Sequence[Tensor], actions: int) -> None:
    if weights[-1].shape[0] != actions:
        raise ValueError(
            f"weights[{len(weights) - 1}]: expected {actions} rows, one an action, "
            f"got shape {checks.shape_text(weights[-1].shape)}"
        )


def _check_draw(
    action: Tensor, latents: int, samples: int, noise: Tensor | None, sampling: str, rows: Tensor | None, backend: str
) -> None:
    """Where the samples come from."""
    if isinstance(samples, bool) or not isinstance(samples, int | torch.SymInt) or samples < 1:
        raise ValueError(f"num_samples: expected an integer >= 1, got {samples!r}")
    if sampling not in SAMPLING:
        raise ValueError(f"sampling: expected one of {', '.join(SAMPLING)}, got {sampling!r}")
    if noise is not None:
        checks.check_tensor("noise", noise, 3, backend)
        checks.check_like("noise", noise, "action", action, backend)
        checks.check_shape("noise", noise, (samples, action.shape[0], latents))
    if rows is not None:
        check_rows(rows, "action", action)
        if noise is not None:
            raise ValueError("rows: expected None beside noise, which is given row by row; rows number those of a draw")


@checks.full_precision
def mlp_mixture_log_prob(
    action: Tensor,
    context: Tensor,
    latent_mean: Tensor,
    latent_std: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None],
    std: Tensor,
    *,
    num_samples: int,
    seed: int | Tensor | None = None,
    noise: Tensor | None = None,
    sampling: str = "iid",
    rows: Tensor | None = None,
    activation: str = "elu",
    activation_parameter: float | None = None,
    precision: str | None = None,
    backend: str | None = None,
) -> Tensor:
    """log (1/N) Σ_i N(action | actor([context, z_i]), std²) with z_i ~ N(latent_mean, latent_std²).

    Memory does not grow with N: samples go through the actor in tiles, and the backward pass draws the same samples
    again from the seed. The part of the first layer that sees the context is computed once a row.

    Args:
        action: [B, A], float32 or float64; on the backends for GPUs float32 or bfloat16, also mixed.
        context: [B, C], the actor's deterministic inputs; they come first.
        latent_mean: [B, Z].
        latent_std: [B, Z], ≥ 0.
        weights: The actor's, one [O, I] a layer, I = C + Z in the first.
        biases: One [O] or None a layer.
        std: [A] or [B, A], > 0: the exploration noise.
        num_samples: N ≥ 1.
        seed: Makes the draw repeatable: a Python integer or an int64 tensor of one element, on the CPU; on the
            backends for GPUs also on the device ("sobol" apart), where a captured CUDA graph reads it anew at every
            replay. None takes one from torch's generator.
        noise: [N, B, Z] to use instead of a draw; then `seed` and `sampling` have no effect, and `rows` must be None.
        sampling: "iid", "antithetic" (second half mirrors the first) or "sobol" (randomised quasi-Monte Carlo).
        rows: int64 [B], ≥ 0: the number of each row's noise stream; None numbers the rows by their place in the batch.
            The noise of a row depends on the seed and its number alone, so rows that are shuffled, split or repeated
            draw again what they drew before. On a GPU only P3_CHECK_VALUES=1 looks for negative ones.
        activation: "elu", "relu" or "leaky_relu", between layers.
        activation_parameter: ELU's alpha or LeakyReLU's slope; None for torch's default.
        precision: Precision of the Triton backend's matrix products: "ieee", "tf32x3", "tf32" or "bf16"; None follows
            `torch.get_float32_matmul_precision()`.
        backend: None to choose, or "reference", "cpu", "triton", "cuda".

    Returns:
        Log-likelihood [B], differentiable in every floating-point tensor, the latent distribution included.
    """
    chosen = choose_backend(backend, action, context, latent_mean, latent_std, weights, biases, std, noise, rows, seed)
    precision = checks.dot_precision(precision, chosen)
    check_action(action, std, chosen)
    _check_rows(action, {"context": context, "latent_mean": latent_mean, "latent_std": latent_std}, chosen)
    checks.check_shape("latent_std", latent_std, latent_mean.shape)
    checks.check_values("latent_std", latent_std)
    checks.check_layers(context.shape[1] + latent_mean.shape[1], "action", action, weights, biases, chosen)
    _check_outputs(weights, action.shape[1])
    _check_draw(action, latent_mean.shape[1], num_samples, noise, sampling, rows, chosen)
    between = resolve_activation(activation, activation_parameter)
    on_device = chosen in checks.ON_DEVICE and sampling != "sobol"
    drawn_from = seed_tensor(seed, noise, action.device if on_device else torch.device("cpu"))
    if chosen == "reference":
        if noise is None:
            batch, columns = latent_mean.shape
            numbers = batch if rows is None else rows
            noise = latent_noise(drawn_from, num_samples, numbers, columns, sampling, action.dtype, action.device)
        return reference.mlp_mixture_log_prob(
            action, context, latent_mean, latent_std, weights, biases, std, noise, activation=between
        )
    present = [
        weight.new_zeros(weight.shape[0]) if bias is None else bias
        for weight, bias in zip(weights, biases, strict=True)
    ]
    inputs = MlpMixtureInputs(
        action=action,
        context=context,
        latent_mean=latent_mean,
        latent_std=latent_std,
        weights=list(weights),
        biases=present,
        std=std,
        noise=noise,
        seed=drawn_from,
        rows=None if rows is None else rows.contiguous(),
        num_samples=num_samples,
        sampling=sampling,
        activation_code=between.code,
        activation_parameter=between.parameter,
        save=wants_gradient(action, context, latent_mean, latent_std, std, noise, *weights, *present),
        precision=precision,
    )

    def fits() -> bool:
        return precision == "ieee" and not inputs.save and one_launch.likelihood_fits(inputs)

    return _OPERATORS(cuda_in_tritons_place(chosen, backend, fits), inputs).log_prob
