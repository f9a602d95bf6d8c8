"""`torch.func` and forward-mode AD: every op and estimator, against finite differences in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import p3kernels
from p3kernels.transforms import transformed

B, C, Z, A = 3, 2, 2, 2
STEP = 1e-5
"""Step of a central difference: its error is STEP² times a third derivative and 1e-16 / STEP, both near 1e-10."""
Op = Callable[..., tuple[Tensor, ...]]


def numbers(*shape: int, positive: bool = False) -> Tensor:
    drawn = torch.randn(*shape, dtype=torch.float64)
    return 0.2 + drawn.abs() if positive else drawn


def split(weights: tuple[Tensor, ...]) -> tuple[list[Tensor], list[Tensor]]:
    return list(weights[::2]), list(weights[1::2])


def moments_inputs() -> tuple[Tensor, ...]:
    layers = numbers(4, C + Z), numbers(4), numbers(3, 4) / 2, numbers(3), numbers(A, 3) / 2, numbers(A)
    return numbers(B, C + Z), numbers(B, Z, positive=True), *layers


def policy_inputs() -> tuple[Tensor, ...]:
    layers = numbers(4, C + Z), numbers(4), numbers(A, 4) / 2, numbers(A)
    latent = numbers(B, Z), numbers(B, Z, positive=True)
    return numbers(B, A), numbers(B, C), *latent, numbers(A, positive=True), *layers


def mixture(backend: str | None, **draw: object) -> Op:
    def op(action: Tensor, context: Tensor, mean: Tensor, std: Tensor, action_std: Tensor, *layers: Tensor) -> tuple:
        arguments = (action, context, mean, std, *split(layers), action_std)
        return (p3kernels.mlp_mixture_log_prob(*arguments, num_samples=5, backend=backend, **draw),)

    return op


def head(backend: str | None) -> Op:
    old = torch.ones(B, A, dtype=torch.float64)
    return lambda action, mean, var, std: p3kernels.gaussian_head(action, mean, var, std, old, old, backend=backend)


def cases(backend: str | None = None) -> dict[str, tuple[Op, Callable[[], tuple[Tensor, ...]]]]:
    def pair() -> tuple[Tensor, ...]:
        return numbers(B, A), numbers(B, A, positive=True)

    def layer() -> tuple[Tensor, ...]:
        return numbers(B, C + Z), numbers(B, Z, positive=True), numbers(A, C + Z), numbers(A)

    named = {"backend": backend}
    mlp = {"elu": ("elu", 0.7), "relu": ("relu", None)}
    return {
        "elu_moments": (lambda m, v: p3kernels.elu_moments(m, v, 0.7, **named), pair),
        "relu_moments": (lambda m, v: p3kernels.relu_moments(m, v, **named), pair),
        "leaky_relu_moments": (lambda m, v: p3kernels.leaky_relu_moments(m, v, 0.2, **named), pair),
        "linear_moments": (lambda *x: p3kernels.linear_moments(*x, **named), layer),
        "linear_elu_moments": (lambda *x: p3kernels.linear_elu_moments(*x, **named), layer),
        "mlp_moments, elu": (
            lambda m, v, *x: p3kernels.mlp_moments(m, v, *split(x), *mlp["elu"], **named),
            moments_inputs,
        ),
        "mlp_moments, relu": (
            lambda m, v, *x: p3kernels.mlp_moments(m, v, *split(x), *mlp["relu"], **named),
            moments_inputs,
        ),
        "mlp_covariance": (lambda m, v, *x: p3kernels.mlp_covariance(m, v, *split(x), **named), moments_inputs),
        "mlp_covariance, unscented": (
            lambda m, v, *x: p3kernels.mlp_covariance(m, v, *split(x), transform="unscented", **named),
            moments_inputs,
        ),
        "mixture_log_prob": (
            lambda *x: (p3kernels.mixture_log_prob(*x, **named),),
            lambda: (numbers(B, A), numbers(5, B, A), numbers(A, positive=True)),
        ),
        "mlp_mixture_log_prob": (mixture(backend, seed=3), policy_inputs),
        "mlp_mixture_log_prob, Sobol": (mixture(backend, seed=3, sampling="sobol"), policy_inputs),
        "mlp_mixture_log_prob, rows": (mixture(backend, seed=3, rows=torch.tensor([5, 2, 5])), policy_inputs),
        "gaussian_head": (head(backend), lambda: (numbers(B, A), *pair(), numbers(A, positive=True))),
    }


NAMES = list(cases())
TWICE = [name for name in NAMES if name != "mlp_covariance"]


def scalar(op: Op) -> Callable[..., Tensor]:
    """A weighted sum of all outputs."""
    return lambda *x: sum((out * torch.arange(1.0, 1 + out.numel()).view_as(out)).sum() for out in op(*x))


def directions(inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(numbers(*tensor.shape) for tensor in inputs)


def moved(inputs: tuple[Tensor, ...], direction: tuple[Tensor, ...], step: float) -> tuple[Tensor, ...]:
    return tuple(tensor + step * along for tensor, along in zip(inputs, direction, strict=True))


def difference(function: Callable[..., tuple[Tensor, ...]], inputs: tuple[Tensor, ...], along: tuple[Tensor, ...]):
    """The central difference of every output, in double steps: what no AD has part in."""
    up, down = (function(*moved(inputs, along, step)) for step in (STEP, -STEP))
    return tuple((a - b) / (2 * STEP) for a, b in zip(up, down, strict=True))


def assert_close(got: tuple[Tensor, ...], expected: tuple[Tensor, ...], tolerance: float = 1e-7) -> None:
    assert any(tensor.count_nonzero() > 0 for tensor in expected)
    for value, other in zip(got, expected, strict=True):
        torch.testing.assert_close(value, other, rtol=tolerance, atol=tolerance)


@pytest.fixture(autouse=True)
def fixed_numbers() -> None:
    torch.manual_seed(5)


@pytest.mark.parametrize("name", NAMES)
def test_forward_mode(name):
    """`torch.func.jvp` and the dual numbers beneath it, where no input requires a gradient."""
    op, make = cases()[name]
    inputs = make()
    along = directions(inputs)
    expected = difference(op, inputs, along)
    values, tangents = jvp(op, inputs, along)
    assert_close(values, op(*inputs), 1e-12)
    assert_close(tangents, expected)
    with forward_ad.dual_level():
        outputs = op(*(forward_ad.make_dual(*both) for both in zip(inputs, along, strict=True)))
        assert_close(tuple(forward_ad.unpack_dual(out).tangent for out in outputs), expected)


@pytest.mark.parametrize("name", NAMES)
def test_every_single_input_has_its_tangent(name):
    """One input is dual, the others are plain: also one in a list of layers, and the last."""
    op, make = cases()[name]
    inputs = make()
    for index, tensor in enumerate(inputs):
        along = tuple(
            numbers(*other.shape) if at == index else torch.zeros_like(other) for at, other in enumerate(inputs)
        )
        _, tangents = jvp(
            lambda x, index=index: op(*inputs[:index], x, *inputs[index + 1 :]), (tensor,), (along[index],)
        )
        assert_close(tangents, difference(op, inputs, along))


@pytest.mark.parametrize("name", NAMES)
def test_reverse_mode(name):
    """`grad`, `vjp` and `jacrev` give what autograd gives on the CPU backend; `jacfwd` the same."""
    op, make = cases()[name]
    inputs = make()
    every = tuple(range(len(inputs)))
    leaves = [tensor.clone().requires_grad_() for tensor in inputs]
    expected = torch.autograd.grad(scalar(op)(*leaves), leaves)
    assert_close(grad(scalar(op), argnums=every)(*inputs), expected, 1e-10)
    outputs, pull = vjp(op, *inputs)
    cotangents = tuple(torch.arange(1.0, 1 + out.numel(), dtype=torch.float64).view_as(out) for out in outputs)
    assert_close(pull(cotangents), expected, 1e-10)
    for reverse, forward in zip(jacrev(op, every)(*inputs), jacfwd(op, every)(*inputs), strict=True):
        assert_close(forward, reverse, 1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_vmap(name):
    """Over every input at once, over one alone, and over gradients."""
    op, make = cases()[name]
    many = [make() for _ in range(4)]
    stacked = tuple(torch.stack(tensors) for tensors in zip(*many, strict=True))
    expected = tuple(torch.stack(outs) for outs in zip(*(op(*inputs) for inputs in many), strict=True))
    assert_close(vmap(op)(*stacked), expected, 1e-10)
    only = vmap(lambda first: op(first, *many[0][1:]))(stacked[0])
    expected = tuple(torch.stack(outs) for outs in zip(*(op(x, *many[0][1:]) for x in stacked[0]), strict=True))
    assert_close(only, expected, 1e-10)
    each = vmap(grad(scalar(op)))(*stacked)
    expected = torch.stack([grad(scalar(op))(*inputs) for inputs in many])
    assert_close((each,), (expected,), 1e-10)


@pytest.mark.parametrize("name", TWICE)
def test_second_derivatives(name):
    """Forward over reverse, against a difference of gradients; and `torch.func.hessian`, which is symmetric."""
    op, make = cases()[name]
    inputs = make()
    along = directions(inputs)
    gradient = grad(scalar(op), argnums=tuple(range(len(inputs))))
    _, tangents = jvp(gradient, inputs, along)
    assert_close(tangents, difference(gradient, inputs, along), 1e-6)
    whole = hessian(scalar(op))(*inputs).reshape(inputs[0].numel(), -1)
    torch.testing.assert_close(whole, whole.t(), rtol=1e-9, atol=1e-9)
    reverse = jacrev(jacrev(scalar(op)))(*inputs).reshape(inputs[0].numel(), -1)
    torch.testing.assert_close(reverse, whole, rtol=1e-9, atol=1e-9)


def test_what_has_no_further_derivative_says_so():
    op, make = cases()["elu_moments"]
    m, v = make()
    third = jacfwd(jacrev(jacrev(lambda x: op(x, v)[0].sum())))
    with pytest.raises(
        RuntimeError, match="cannot differentiate three times: the moments of ELU offer first and second"
    ):
        third(m)
    op, make = cases()["mlp_covariance"]
    inputs = make()
    for transform in (hessian, lambda f: jacrev(jacrev(f))):
        with pytest.raises(RuntimeError, match="cannot differentiate twice: linearised activations offer first"):
            transform(scalar(op))(*inputs)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "linear_moments"])
def test_kernels_refuse_what_they_cannot_follow(name):
    """An explicit backend="cpu" is an error inside a transform, not zeros; ops that are plain torch there may run."""
    op, make = cases("cpu")[name]
    inputs = make()
    expected = r"backend='cpu' cannot run: its kernels know nothing of torch.func and forward-mode AD; use 'reference'"
    for attempt in (
        lambda: jvp(op, inputs, directions(inputs)),
        lambda: grad(scalar(op))(*inputs),
        lambda: vmap(lambda x: op(x, *inputs[1:]))(torch.stack([inputs[0]] * 2)),
    ):
        with pytest.raises(RuntimeError, match=expected):
            attempt()


def test_kernels_run_on_what_takes_no_part():
    """Inside a transform, but on tensors of outside: the CPU backend as ever."""
    m, v = numbers(B, A), numbers(B, A, positive=True)
    plain = p3kernels.elu_moments(m, v, backend="cpu")[0]
    got = grad(lambda x: (x * p3kernels.elu_moments(m, v, backend="cpu")[0]).sum())(torch.ones_like(m))
    torch.testing.assert_close(got, plain, rtol=0, atol=0)
    assert not transformed(m, [v])


def test_second_derivatives_of_kernels_name_the_way_out():
    m, v = numbers(B, A).requires_grad_(), numbers(B, A, positive=True)
    (first,) = torch.autograd.grad(p3kernels.elu_moments(m, v, backend="cpu")[1].sum(), m, create_graph=True)
    with pytest.raises(
        RuntimeError, match="cannot differentiate twice on the cpu backend; backend='reference' has second"
    ):
        first.sum().backward()


@pytest.mark.parametrize("transform", ["jvp", "grad", "vmap"])
def test_compiled_transforms(transform):
    m, v = numbers(B, A), numbers(B, A, positive=True)

    def function(x: Tensor) -> Tensor:
        if transform == "jvp":
            return jvp(lambda y: p3kernels.elu_moments(y, v)[1], (x,), (torch.ones_like(x),))[1]
        if transform == "grad":
            return grad(lambda y: p3kernels.elu_moments(y, v)[1].sum())(x)
        return vmap(lambda y, w: p3kernels.elu_moments(y, w)[1])(x, v)

    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")(m)
    torch.testing.assert_close(compiled, function(m), rtol=1e-10, atol=1e-10)
    assert compiled.count_nonzero() > 0


ESTIMATORS = {
    "MM": p3kernels.MomentMatching(),
    "MC": p3kernels.MonteCarlo(4, common=True),
    "CM": p3kernels.CovarianceMatching(),
    "z = mean": p3kernels.LatentMean(),
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_estimators(name):
    """Mean, spread and likelihood of a policy, forward and reverse, in the latent and in the actor's weights."""
    network = nn.Sequential(nn.Linear(C + Z, 4), nn.ELU(), nn.Linear(4, A)).double()
    weights = {key: value.detach() for key, value in network.named_parameters()}
    action, context, mean, std = numbers(B, A), numbers(B, C), numbers(B, Z), numbers(B, Z, positive=True)
    action_std = numbers(A, positive=True)
    draw = {"seed": 3, "rows": torch.arange(B) + 4} if name == "MC" else {}

    class Policy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, latent_mean: Tensor, latent_std: Tensor) -> Tensor:
            policy = ESTIMATORS[name].policy(self.network, context, latent_mean, latent_std, action_std, **draw)
            return torch.cat([policy.mean.flatten(), policy.stddev.flatten(), policy.log_prob(action)])

    module = Policy()

    def function(latent_mean: Tensor, latent_std: Tensor, *values: Tensor) -> tuple[Tensor]:
        named = {f"network.{key}": value for key, value in zip(weights, values, strict=True)}
        return (functional_call(module, named, (latent_mean, latent_std)),)

    inputs = (mean, std, *weights.values())
    along = directions(inputs)
    assert_close(jvp(function, inputs, along)[1], difference(function, inputs, along), 1e-6)
    backward = grad(lambda *x: function(*x)[0].sum(), argnums=tuple(range(len(inputs))))(*inputs)
    slope = sum((a * b).sum() for a, b in zip(backward, along, strict=True))
    assert_close((slope,), (difference(function, inputs, along)[0].sum(),), 1e-6)
