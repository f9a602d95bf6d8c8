"""Linear layers and ELUs, one after the other, as one step of automatic differentiation.

On a CPU the training of small networks spends nearly as much time around its matrix products as in them: biases, ELUs,
their gradients, and the bookkeeping of each. Here a bias and its ELU are one pass in place, of which the output alone
is kept, and a whole network is one node of the graph. The numbers are those of the layers, to rounding. On a GPU a
network is one node, too: half of the activations are kept, and the biases' gradients are summed in one launch.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from rsl_rl.models import MLPModel
from tensordict import TensorDict
from torch import Tensor, nn

from p3kernels.activations import ELU, Activation
from p3kernels.backends import available_backends, on_gpu
from p3kernels.cpu import native
from p3kernels.layered.products import mm

_ELU = Activation(ELU, 1.0)


@dataclass(frozen=True)
class Entries:
    """The entries of a matrix that share their weights, grouped in three ways for the kernels."""

    by_output: native.Taps
    by_input: native.Taps
    by_weight: native.Taps
    outputs: int
    """Rows of the matrix."""
    inputs: int
    """Its columns."""


def entries_of(output: Tensor, input_: Tensor, weight: Tensor, outputs: int, inputs: int, weights: int) -> Entries:
    """Entries [K] of a matrix [outputs, inputs]: entry k, in row output[k] and column input_[k], is weight[k]."""

    def grouped(groups: Tensor, count: int, *others: Tensor) -> native.Taps:
        order = groups.argsort(stable=True)
        start = torch.cat([groups.new_zeros(1), groups.bincount(minlength=count).cumsum(0)])
        first, second = (other[order].int() for other in others)
        return native.Taps(start.int(), first, second)

    return Entries(
        by_output=grouped(output, outputs, input_, weight),
        by_input=grouped(input_, inputs, output, weight),
        by_weight=grouped(weight, weights, output, input_),
        outputs=outputs,
        inputs=inputs,
    )


class TapLayer(nn.Module):
    """A layer that is a product with a matrix of few entries, each one of its weights, and a bias."""

    def taps(self) -> tuple[Entries, Tensor, Tensor]:
        """The entries, the weights, of any shape, and the bias [O]; differentiable in the layer's parameters."""
        raise NotImplementedError


class _Layer(NamedTuple):
    """What a layer of `_Dense` is beside its parameters."""

    activated: bool
    """Whether an ELU follows."""
    entries: Entries | None = None
    """Those of a `TapLayer`; None for a linear layer."""


def run(x: Tensor, *networks: nn.Module) -> Tensor:
    """The networks, one after the other, at x [B, I]: as one step where that is possible, else module by module.

    That takes `nn.Linear` and `TapLayer`s, each with an ELU of alpha 1 behind it or none, on the CPU with the native
    kernels; it has first derivatives alone. On a GPU it is one step for every row of `nn.Linear`s between other layers.
    """
    if on_gpu(x) and _is_traceless(x):
        return _run_on_gpu(x, networks)
    if not _is_plain(x):
        return functools.reduce(lambda value, network: network(value), networks, x)
    parameters: list[Tensor] = []
    layers: list[_Layer] = []
    for module in _modules(networks):
        if isinstance(module, nn.ELU) and module.alpha == 1.0 and layers and not layers[-1].activated:
            layers[-1] = layers[-1]._replace(activated=True)
        elif isinstance(module, TapLayer):
            entries, weight, bias = module.taps()
            if weight.dtype != x.dtype:  # torch says what it thinks of that
                return functools.reduce(lambda value, network: network(value), networks, x)
            parameters += (weight, bias)
            layers.append(_Layer(activated=False, entries=entries))
        elif type(module) is nn.Linear and module.bias is not None and module.weight.dtype == x.dtype:
            parameters += (module.weight, module.bias)
            layers.append(_Layer(activated=False))
        else:
            return functools.reduce(lambda value, network: network(value), networks, x)
    return _Dense.apply(x, tuple(layers), *parameters)


def value_of(critic: nn.Module, obs: TensorDict) -> Tensor:
    """[B, 1]: `critic(obs)`, by `run` where it is rsl_rl's MLP."""
    return value_of_inputs(critic, critic_inputs(critic, obs))


def critic_inputs(critic: Any, obs: TensorDict) -> Tensor | TensorDict:
    """What `value_of_inputs` takes: [B, I], normalised, of rsl_rl's MLP; of another critic its observations."""
    if type(critic) is not MLPModel or critic.distribution is not None:
        return obs.select(*critic.obs_groups)
    return critic.get_latent(obs)


def value_of_inputs(critic: Any, inputs: Tensor | TensorDict) -> Tensor:
    """[B, 1]: the critic's value of its `critic_inputs`."""
    return run(inputs, critic.mlp) if isinstance(inputs, Tensor) else critic(inputs)


def _modules(networks: tuple[nn.Module, ...]) -> Iterator[nn.Module]:
    for network in networks:
        if isinstance(network, nn.Sequential):
            yield from _modules(tuple(network))
        else:
            yield network


def _is_plain(x: Tensor) -> bool:
    """Whether x is numbers on the CPU that the kernels take, and no stand-in of a tracer or a compiler."""
    return x.device.type == "cpu" and _is_traceless(x) and _has_kernels()


def _is_traceless(x: Tensor) -> bool:
    """Whether x is rows of numbers, and no stand-in of a tracer or a compiler."""
    return (
        type(x) is Tensor
        and x.dim() == 2
        and x.dtype in (torch.float32, torch.float64)
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()
        and not torch.is_autocast_enabled(x.device.type)
    )


@functools.cache
def _has_kernels() -> bool:
    return available_backends()["cpu"].startswith("available")


def _keep(ctx: Any, layers: tuple[Any, ...], outputs: list[Tensor], weights: tuple[Tensor, ...]) -> Tensor:
    """The last of the layers' outputs; all of them, the input first, are kept for the backward pass."""
    ctx.layers = layers
    ctx.save_for_backward(*outputs, *weights)
    return outputs[-1]


def _kept(ctx: Any) -> tuple[int, tuple[Tensor, ...], tuple[Tensor, ...]]:
    """The number of layers, their outputs with the input first, and their weights."""
    layers = len(ctx.layers)
    return layers, ctx.saved_tensors[: layers + 1], ctx.saved_tensors[layers + 1 :]


class _Dense(torch.autograd.Function):
    """y = f(W_n … f(W_1 x + b_1) … + b_n), f an ELU or nothing, from the outputs of the layers alone.

    Between layers, what a tap layer gave lies cell by cell: [O, B] in memory, as its kernels read and write it fastest.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, layers: tuple[_Layer, ...], *parameters: Tensor) -> Tensor:
        outputs = [x]
        for index, layer in enumerate(layers):
            weight, bias, value = parameters[2 * index], parameters[2 * index + 1], outputs[-1]
            if layer.entries is not None:
                if value.shape[1] != layer.entries.inputs:
                    raise ValueError(f"expected {layer.entries.inputs} cells of an image, got {value.shape[1]}")
                out = _empty(len(x), layer.entries.outputs, x, by_cell=_lies_by_cell(layers, index))
                activation = _ELU if layer.activated else None
                native.taps_forward(
                    layer.entries.by_output, weight.contiguous(), bias.contiguous(), activation, value, out
                )
            elif layer.activated:
                out = mm(value, weight.t())
                native.activation_forward(_ELU, out, bias[None].contiguous(), out)
            else:
                out = mm(value, weight.t(), bias=bias)
            outputs.append(out)
        return _keep(ctx, layers, outputs, parameters[::2])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *d_outputs: Tensor) -> tuple[Tensor | None, ...]:
        layers, outputs, weights = _kept(ctx)
        gradient, own = d_outputs[0], False  # the incoming one belongs to the graph
        d_parameters: list[Tensor] = []
        for index in reversed(range(layers)):
            layer, weight, value = ctx.layers[index], weights[index], outputs[index]
            by_cell = _lies_by_cell(ctx.layers, index)
            if layer.activated:
                lies = gradient.t().contiguous().t() if by_cell else gradient.contiguous()
                to = lies if own or lies is not gradient else torch.empty_like(lies)
                native.activation_backward(_ELU, outputs[index + 1], lies, to)
                gradient = to
            before_by_cell = index > 0 and _lies_by_cell(ctx.layers, index - 1)
            needed = index > 0 or ctx.needs_input_grad[0]
            if layer.entries is not None:
                d_weight = torch.empty_like(weight, memory_format=torch.contiguous_format)
                native.taps_weights(layer.entries.by_weight, gradient, value, d_weight)
                d_parameters += (gradient.sum(0), d_weight)
                if needed:
                    d_value = _empty(len(value), value.shape[1], value, by_cell=before_by_cell)
                    native.taps_forward(layer.entries.by_input, weight.contiguous(), None, None, gradient, d_value)
                    gradient, own = d_value, True
                continue
            d_parameters += (gradient.sum(0), mm(gradient.t(), value))
            if needed:
                product = mm(weight.t(), gradient.t()).t() if before_by_cell else mm(gradient, weight)
                gradient, own = product, True
        return gradient if ctx.needs_input_grad[0] else None, None, *reversed(d_parameters)


def _lies_by_cell(layers: tuple[_Layer, ...], index: int) -> bool:
    """Whether a layer's output lies cell by cell: a tap layer's, but for the last, which goes to others."""
    return layers[index].entries is not None and index + 1 < len(layers)


def _empty(rows: int, columns: int, like: Tensor, *, by_cell: bool) -> Tensor:
    """[rows, columns], in memory [columns, rows] if by_cell."""
    return like.new_empty(columns, rows).t() if by_cell else like.new_empty(rows, columns)


def _run_on_gpu(x: Tensor, networks: tuple[nn.Module, ...]) -> Tensor:
    """The networks at x [B, I], linear layers one after the other as one step, other modules as they are."""
    layers: list[nn.Linear] = []
    activated: list[bool] = []

    def flushed(x: Tensor) -> Tensor:
        if not layers:
            return x
        parameters = [tensor for layer in layers for tensor in (layer.weight, layer.bias)]
        out = _DenseOnGpu.apply(x, tuple(activated), *parameters)
        layers.clear()
        activated.clear()
        return out

    for module in _modules(networks):
        if isinstance(module, nn.ELU) and module.alpha == 1.0 and activated and not activated[-1]:
            activated[-1] = True
        elif type(module) is nn.Linear and module.bias is not None and module.weight.dtype == x.dtype:
            layers.append(module)
            activated.append(False)
        else:
            x = module(flushed(x))
    return flushed(x)


class _DenseOnGpu(torch.autograd.Function):
    """As `_Dense`, in torch's own kernels."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, activated: tuple[bool, ...], *parameters: Tensor) -> Tensor:
        outputs = [x]
        for weight, bias, active in zip(parameters[::2], parameters[1::2], activated, strict=True):
            out = torch.addmm(bias, outputs[-1], weight.t())
            outputs.append(nn.functional.elu(out, inplace=True) if active else out)
        return _keep(ctx, activated, outputs, parameters[::2])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *d_outputs: Tensor) -> tuple[Tensor | None, ...]:
        layers, outputs, weights = _kept(ctx)
        gradient = d_outputs[0]
        widths = [len(weight) for weight, active in zip(weights, ctx.layers, strict=True) if active]
        # The gradients before the activations side by side: the biases' are their sums over rows.
        inner = gradient.new_empty(len(gradient), sum(widths))
        places = list(inner.split(widths, 1))
        d_weights: list[Tensor] = []
        d_biases: dict[int, Tensor] = {}
        for layer in reversed(range(layers)):
            if ctx.layers[layer]:
                into = places.pop()
                torch.ops.aten.elu_backward.grad_input(
                    gradient, 1.0, 1.0, 1.0, True, outputs[layer + 1], grad_input=into
                )
                gradient = into
            else:
                d_biases[layer] = gradient.sum(0)
            d_weights.append(torch.mm(gradient.t(), outputs[layer]))
            if layer or ctx.needs_input_grad[0]:
                gradient = torch.mm(gradient, weights[layer])
        if widths:
            active = [layer for layer in range(layers) if ctx.layers[layer]]
            d_biases.update(zip(active, inner.sum(0).split(widths), strict=True))
        d_parameters = [t for layer in range(layers) for t in (d_weights[layers - 1 - layer], d_biases[layer])]
        return gradient if ctx.needs_input_grad[0] else None, None, *d_parameters
