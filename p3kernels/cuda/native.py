"""The CUDA kernels, called with tensors: contiguous tensors of one device in, addresses and the current stream out.

Functions that the CPU's `native.py` has, too, have its names and meaning, so that the layer-by-layer passes of
`p3kernels/layered` run with either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from p3kernels import backends
from p3kernels.activations import Activation

Address = tuple[int, bool]
"""Where a tensor begins in memory, and whether it holds bfloat16."""


def kernels() -> Any:
    """The module of the kernels."""
    module, reason = backends.load_cuda()
    if module is None:
        raise RuntimeError(f"backend 'cuda' cannot run: {reason}")
    return module


def _where(tensor: Tensor) -> tuple[int, int]:
    """Device and stream of a launch; a test's build of the kernels has neither."""
    if tensor.device.type != "cuda":
        return 0, 0
    return tensor.device.index, torch.cuda.current_stream(tensor.device).cuda_stream


def _run(name: str, like: Tensor, *arguments: Any) -> None:
    with torch.cuda.device_of(like):  # does nothing for a tensor that is not on a GPU
        getattr(kernels(), name)(_where(like), *arguments)


def _tensor(tensor: Tensor | None) -> Address:
    return (0, False) if tensor is None else (tensor.data_ptr(), tensor.dtype == torch.bfloat16)


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _seed(seed: Tensor) -> tuple[int, int]:
    """By value from the CPU, by address from the device, where a captured graph reads it at every replay."""
    return (int(seed), 0) if seed.device.type == "cpu" else (0, seed.data_ptr())


def _std_stride(std: Tensor) -> int:
    return std.shape[1] if std.dim() == 2 else 0


def moments_forward(
    activation: Activation, mean: Tensor, var: Tensor, bias: Tensor | None, out_mean: Tensor, out_var: Tensor
) -> None:
    """out = moments of activation(x + bias), x ~ N(mean, var); all [R, O], bias [O]. In place allowed."""
    period = 1 if bias is None else bias.numel()
    outputs = (_tensor(out_mean), _tensor(out_var))
    inputs = (_tensor(mean), _tensor(var), _tensor(bias))
    _run("activation_moments_forward", mean, *activation, *inputs, period, *outputs, mean.numel())


def moments_backward(
    activation: Activation,
    mean: Tensor,
    var: Tensor,
    bias: Tensor | None,
    d_out_mean: Tensor,
    d_out_var: Tensor,
    d_mean: Tensor,
    d_var: Tensor,
    out_mean: Tensor | None = None,
    out_var: Tensor | None = None,
) -> None:
    """d_mean, d_var of `moments_forward`; `out_*` get the forward values again, to rounding. In place allowed."""
    period = 1 if bias is None else bias.numel()
    inputs = (_tensor(mean), _tensor(var), _tensor(bias))
    rest = [_tensor(tensor) for tensor in (d_out_mean, d_out_var, d_mean, d_var, out_mean, out_var)]
    _run("activation_moments_backward", mean, *activation, *inputs, period, *rest, mean.numel())


def activation_forward(activation: Activation, x: Tensor, shift: Tensor, out: Tensor) -> None:
    """out [R, O] = activation(x + shift), shift [S, O] for row r being r mod S. In place allowed."""
    _run("activation_forward", x, *activation, _tensor(x), _tensor(shift), shift.numel(), _tensor(out), x.numel())


def activation_backward(activation: Activation, out: Tensor, d_out: Tensor, d_x: Tensor) -> None:
    """d_x = d_out · activation′, from the activation's output. In place allowed."""
    _run("activation_backward", out, *activation, _tensor(out), _tensor(d_out), _tensor(d_x), out.numel())


def _mixture(action: Tensor, means: Tensor, std: Tensor, offset: float) -> tuple[Any, ...]:
    return _tensor(action), _tensor(means), _tensor(std), _std_stride(std), *means.shape, offset


def mixture_forward(action: Tensor, means: Tensor, std: Tensor, log_sum: Tensor, offset: float = 0.0) -> None:
    """log_sum [B] = log Σ_i N(action | means_i, std²) − offset: [B, A], [N, B, A], [A] | [B, A]."""
    _run("mixture_log_prob_forward", means, *_mixture(action, means, std, offset), _address(log_sum))


def mixture_backward(
    action: Tensor,
    means: Tensor,
    std: Tensor,
    log_sum: Tensor,
    d_log_sum: Tensor,
    d_means: Tensor,
    d_action: Tensor,
    d_std: Tensor,
    offset: float = 0.0,
    add: bool = True,
) -> None:
    """d_means [N, B, A] is written (may be `means`); d_action and d_std [B, A], float32, are added to if `add`."""
    gradients = (_tensor(d_means), _address(d_action), _address(d_std), add)
    given = _mixture(action, means, std, offset)
    _run("mixture_log_prob_backward", means, *given, _address(log_sum), _address(d_log_sum), *gradients)


def latent_backward(d_latent: Tensor, noise: Tensor, d_mean: Tensor, d_std: Tensor) -> None:
    """d_mean, d_std [R, Z] += Σ_i d_latent_i, Σ_i d_latent_i ∘ noise_i; d_latent [n, R, ≥ Z], noise [n, R, Z]."""
    outputs = (_address(d_mean), _address(d_std))
    _run("latent_backward", noise, _address(d_latent), d_latent.shape[2], _address(noise), *outputs, *noise.shape)


def normal(
    seed: Tensor, stream: int, first_sample: int, first_row: int, out: Tensor, numbers: Tensor | None = None
) -> None:
    """Fills out [n, R, Z], float32, with the standard normals of samples first_sample.. and rows first_row.. .

    With `numbers`, int64 [R], row r has the normals of row numbers[r] instead.
    """
    samples, rows, columns = out.shape
    places = (first_sample, samples, first_row, _address(numbers), rows, columns)
    _run("normal", out, *_seed(seed), stream, *places, _address(out))


def gaussian_head_forward(tensors: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
    """Tensors: action, mean, var, std, old_mean, old_std; outputs: log_prob, entropy, kl [B]."""
    shape = tensors[0].shape
    given = ([_tensor(tensor) for tensor in tensors], _std_stride(tensors[3]), *shape)
    _run("gaussian_head_forward", tensors[0], *given, *(_address(out) for out in outputs))


def gaussian_head_backward(
    tensors: Sequence[Tensor],
    d_outputs: Sequence[Tensor],
    d_action: Tensor,
    d_mean: Tensor,
    d_var: Tensor,
    d_std: Tensor,
) -> None:
    """d_* [B, A], d_std float32; tensors as for the forward, d_outputs [B] the gradients of its outputs."""
    given = ([_tensor(tensor) for tensor in tensors], _std_stride(tensors[3]), *tensors[0].shape)
    gradients = (_tensor(d_action), _tensor(d_mean), _tensor(d_var), _address(d_std))
    _run("gaussian_head_backward", tensors[0], *given, *(_address(d) for d in d_outputs), *gradients)


@dataclass(frozen=True)
class Network:
    """What the one-launch kernels take of a network: at most 8 layers, weights of one dtype."""

    weights: Sequence[Tensor]
    """One [O, I] a layer, contiguous."""
    biases: Sequence[Tensor | None]
    """One [O] a layer; None, or of no elements, where there is none."""
    activation: Activation

    @property
    def widths(self) -> list[int]:
        """[I, O, …]."""
        return [self.weights[0].shape[1], *(weight.shape[0] for weight in self.weights)]

    def arguments(self) -> tuple[Any, ...]:
        """As the kernels take it."""
        biases = [None if bias is None or bias.numel() == 0 else bias for bias in self.biases]
        parameters = ([_tensor(weight) for weight in self.weights], [_tensor(bias) for bias in biases])
        return *parameters, self.widths, *self.activation


def one_dtype(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Contiguous, and float32 where the dtypes are mixed."""
    mixed = any(tensor.dtype != tensors[0].dtype for tensor in tensors)
    return [(tensor.float() if mixed else tensor).contiguous() for tensor in tensors]


def _limits(like: Tensor) -> tuple[int, int]:
    return kernels().limits(_where(like)[0])


def moments_in_one_launch(widths: Sequence[int], rows: int, like: Tensor) -> bool:
    """Whether `mlp_moments` can take a network: not too deep, its activations within a block's shared memory."""
    if len(widths) - 1 > kernels().most_layers:
        return False
    return kernels().moments_tile(list(widths), rows, *_limits(like))[0] > 0


def moments_a_multiprocessor(widths: Sequence[int], rows: int, like: Tensor) -> int:
    """Tiles of rows that the busiest multiprocessor takes through a network that fits, one after the other."""
    processors, shared_bytes = _limits(like)
    tile = kernels().moments_tile(list(widths), rows, processors, shared_bytes)[0]
    return -(-rows // (tile * processors))


def actions_in_one_launch(widths: Sequence[int], context: int, rows: int, like: Tensor) -> bool:
    """Whether `mlp_actions` can take a network."""
    if len(widths) - 1 > kernels().most_layers:
        return False
    return kernels().actions_tile(list(widths), context, rows, *_limits(like))[0] > 0


def mlp_moments(
    network: Network, activate_last: bool, mean: Tensor, var: Tensor, out_mean: Tensor, out_var: Tensor
) -> None:
    """out [B, O] = moments of the whole network at mean [B, I], var [B, J]."""
    moments = (_tensor(mean), _tensor(var), var.shape[1], mean.shape[0])
    _run("mlp_moments", mean, *network.arguments(), activate_last, *moments, _address(out_mean), _address(out_var))


def mlp_actions(
    network: Network,
    context: Tensor,
    latent_mean: Tensor,
    latent_std: Tensor | None,
    noise: Tensor | None,
    seed: Tensor | None,
    num_samples: int,
    antithetic: bool,
    means: Tensor | None = None,
    likelihood: tuple[Tensor, Tensor, float, Tensor] | None = None,
    rows: Tensor | None = None,
) -> None:
    """The network at [context, latent_mean + latent_std ∘ noise], sample after sample.

    Args:
        network: The layers.
        context: [B, C].
        latent_mean: [B, Z].
        latent_std: [B, Z]; None for the latent's mean itself.
        noise: [N, B, Z]; None draws it from the seed.
        seed: One int64, on the CPU or the device; None where nothing is drawn.
        num_samples: N.
        antithetic: Whether the second half of the samples mirrors the first.
        means: [N, B, A], written if given.
        likelihood: action [B, A], std [A] or [B, A], an offset, and log_prob [B], which becomes
            log Σ_i N(action | means_i, std²) − offset.
        rows: int64 [B], the numbers of the rows whose noise is drawn; None for their places.
    """
    half = (num_samples + 1) // 2 if antithetic else num_samples
    drawn = (*(_seed(seed) if seed is not None else (0, 0)), _address(rows))
    sizes = (half, context.shape[1], num_samples, context.shape[0])
    inputs = (_tensor(context), _tensor(latent_mean), _tensor(latent_std), _tensor(noise))
    if likelihood is None:
        given: tuple[Any, ...] = (_tensor(None), _tensor(None), 0, 0.0, 0)
    else:
        action, std, offset, log_prob = likelihood
        given = (_tensor(action), _tensor(std), _std_stride(std), offset, _address(log_prob))
    _run("mlp_actions", context, *network.arguments(), *inputs, *drawn, *sizes, *given, _address(means))
