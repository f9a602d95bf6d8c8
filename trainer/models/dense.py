"""Linear layers and ELUs, one after the other, as one step of automatic differentiation.

On a CPU the training of small networks spends nearly as much time around its matrix products as in them: biases, ELUs,
their gradients, and the bookkeeping of each. Here a bias and its ELU are one pass in place, of which the output alone
is kept, and a whole network is one node of the graph. The numbers are those of the layers, to rounding. On a GPU a
network is one node, too: half of the activations are kept, and the biases' gradients are summed in one launch.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
from rsl_rl.models import MLPModel
from tensordict import TensorDict
from torch import Tensor, nn

from p3kernels.activations import ELU, Activation
from p3kernels.backends import available_backends, on_gpu
from p3kernels.cpu import native

_ELU = Activation(ELU, 1.0)


class MatrixLayer(nn.Module):
    """A layer that is a product with a matrix and a bias, both made of its parameters."""

    def as_linear(self) -> tuple[Tensor, Tensor]:
        """The matrix [O, I] and the bias [O], differentiable in the parameters."""
        raise NotImplementedError


def run(x: Tensor, *networks: nn.Module) -> Tensor:
    """The networks, one after the other, at x [B, I]: as one step where that is possible, else module by module.

    That takes `nn.Linear` and `MatrixLayer`s, each with an ELU of alpha 1 behind it or none, on the CPU with the native
    kernels; it has first derivatives alone. On a GPU it is one step for every row of `nn.Linear`s between other layers.
    """
    if on_gpu(x) and _is_traceless(x):
        return _run_on_gpu(x, networks)
    if not _is_plain(x):
        return functools.reduce(lambda value, network: network(value), networks, x)
    parameters: list[Tensor] = []
    activated: list[bool] = []
    for module in _modules(networks):
        if isinstance(module, nn.ELU) and module.alpha == 1.0 and activated and not activated[-1]:
            activated[-1] = True
        elif isinstance(module, MatrixLayer):
            parameters += module.as_linear()
            activated.append(False)
        elif type(module) is nn.Linear and module.bias is not None and module.weight.dtype == x.dtype:
            parameters += (module.weight, module.bias)
            activated.append(False)
        else:
            return functools.reduce(lambda value, network: network(value), networks, x)
    return _Dense.apply(x, tuple(activated), *parameters)


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


def _keep(ctx: Any, activated: tuple[bool, ...], outputs: list[Tensor], weights: tuple[Tensor, ...]) -> Tensor:
    """The last of the layers' outputs; all of them, the input first, are kept for the backward pass."""
    ctx.activated = activated
    ctx.save_for_backward(*outputs, *weights)
    return outputs[-1]


def _kept(ctx: Any) -> tuple[int, tuple[Tensor, ...], tuple[Tensor, ...]]:
    """The number of layers, their outputs with the input first, and their weights."""
    layers = len(ctx.activated)
    return layers, ctx.saved_tensors[: layers + 1], ctx.saved_tensors[layers + 1 :]


class _Dense(torch.autograd.Function):
    """y = f(W_n … f(W_1 x + b_1) … + b_n), f an ELU or nothing, from the outputs of the layers alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, activated: tuple[bool, ...], *parameters: Tensor) -> Tensor:
        outputs = [x]
        for weight, bias, active in zip(parameters[::2], parameters[1::2], activated, strict=True):
            if active:
                out = torch.mm(outputs[-1], weight.t())
                native.activation_forward(_ELU, out, bias[None].contiguous(), out)
            else:
                out = torch.addmm(bias, outputs[-1], weight.t())
            outputs.append(out)
        return _keep(ctx, activated, outputs, parameters[::2])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *d_outputs: Tensor) -> tuple[Tensor | None, ...]:
        layers, outputs, weights = _kept(ctx)
        gradient, own = d_outputs[0], False  # the incoming one belongs to the graph
        d_parameters: list[Tensor] = []
        for layer in reversed(range(layers)):
            if ctx.activated[layer]:
                gradient = gradient.contiguous()
                to = gradient if own else torch.empty_like(gradient)
                native.activation_backward(_ELU, outputs[layer + 1], gradient, to)
                gradient = to
            d_parameters += (gradient.sum(0), torch.mm(gradient.t(), outputs[layer]))
            if layer or ctx.needs_input_grad[0]:
                gradient, own = torch.mm(gradient, weights[layer]), True
        return gradient if ctx.needs_input_grad[0] else None, None, *reversed(d_parameters)


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
        widths = [len(weight) for weight, active in zip(weights, ctx.activated, strict=True) if active]
        # The gradients before the activations side by side: the biases' are their sums over rows.
        inner = gradient.new_empty(len(gradient), sum(widths))
        places = list(inner.split(widths, 1))
        d_weights: list[Tensor] = []
        d_biases: dict[int, Tensor] = {}
        for layer in reversed(range(layers)):
            if ctx.activated[layer]:
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
            active = [layer for layer in range(layers) if ctx.activated[layer]]
            d_biases.update(zip(active, inner.sum(0).split(widths), strict=True))
        d_parameters = [t for layer in range(layers) for t in (d_weights[layers - 1 - layer], d_biases[layer])]
        return gradient if ctx.needs_input_grad[0] else None, None, *d_parameters
