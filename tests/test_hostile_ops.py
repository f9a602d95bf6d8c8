"""A hostile afternoon with the ops: any shape, dtype, stride, value and mode gives a clean error or the right answer.

Every example is one call of a public op or estimator whose arguments were twisted at random. A clean error is a
`ValueError`, `TypeError` or `NotImplementedError` that begins with an argument's name. A right answer is that of the
reference backend in float64 on plain copies of the same values. `make test-all` tries many more.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from helpers.elsewhere import in_a_fork, in_a_thread
from hypothesis import HealthCheck, given, note, seed, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import p3kernels

TWICE = "cannot differentiate twice"
"""How the kernels begin to say that they have first derivatives alone."""
CLEAN = (ValueError, TypeError, NotImplementedError)
TOLERANCES = {torch.float64: 1e-9, torch.float32: 2e-4}
"""Errors over the answer's scale. In float32 the networks' products round too: some 1e-6 of sums of some ten terms."""


def numbers(*shape: int, positive: bool = False) -> Tensor:
    drawn = torch.randn(*shape)
    return 0.1 + drawn.abs() if positive else drawn


@dataclass
class Call:
    """One call: the function, and its arguments as they are given to it."""

    function: Callable[..., Any]
    arguments: dict[str, Any]
    keywords: dict[str, Any] = field(default_factory=dict)
    names: tuple[str, ...] = ()

    def run(self, backend: str | None = None, arguments: dict[str, Any] | None = None) -> list[Tensor]:
        chosen = {} if backend is None else {"backend": backend}
        found = self.function(**(self.arguments if arguments is None else arguments), **self.keywords, **chosen)
        return [found] if isinstance(found, Tensor) else list(found)


def layers(sizes: list[int]) -> tuple[list[Tensor], list[Tensor]]:
    pairs = list(itertools.pairwise(sizes))
    return [numbers(o, i) / i**0.5 for i, o in pairs], [numbers(o) for _, o in pairs]


@st.composite
def calls(draw: st.DrawFn) -> Call:
    """A right call of any op, with sizes from the smallest on."""
    size = st.integers(1, 6)
    b, c, z, a, n = draw(st.integers(0, 5)), draw(size), draw(size), draw(size), draw(st.integers(1, 4))
    name = draw(st.sampled_from(sorted(OPS)))
    function = getattr(p3kernels, name)
    arguments = OPS[name](b, c, z, a, n)
    keywords = {"num_samples": n, "seed": 3} if name == "mlp_mixture_log_prob" else {}
    return Call(function, arguments, keywords)


def _network(b: int, c: int, z: int, a: int, _: int) -> dict[str, Any]:
    weights, biases = layers([c + z, 5, 4, a])
    return {"mean": numbers(b, c + z), "var": numbers(b, z, positive=True), "weights": weights, "biases": biases}


def _mixture(b: int, c: int, z: int, a: int, _: int) -> dict[str, Any]:
    weights, biases = layers([c + z, 5, a])
    return {
        "action": numbers(b, a),
        "context": numbers(b, c),
        "latent_mean": numbers(b, z),
        "latent_std": numbers(b, z, positive=True),
        "weights": weights,
        "biases": biases,
        "std": numbers(a, positive=True),
    }


def _layer(b: int, c: int, z: int, a: int, _: int) -> dict[str, Any]:
    return {
        "mean": numbers(b, c + z),
        "var": numbers(b, z, positive=True),
        "weight": numbers(a, c + z),
        "bias": numbers(a),
    }


def _pair(b: int, c: int, *_: int) -> dict[str, Any]:
    return {"mean": numbers(b, c), "var": numbers(b, c, positive=True)}


OPS: dict[str, Callable[..., dict[str, Any]]] = {
    "elu_moments": _pair,
    "relu_moments": _pair,
    "leaky_relu_moments": _pair,
    "linear_moments": _layer,
    "linear_elu_moments": _layer,
    "mlp_moments": _network,
    "mlp_covariance": _network,
    "mixture_log_prob": lambda b, c, z, a, n: {
        "action": numbers(b, a),
        "means": numbers(n, b, a),
        "std": numbers(a, positive=True),
    },
    "mlp_mixture_log_prob": _mixture,
    "gaussian_head": lambda b, c, z, a, n: {
        "action": numbers(b, a),
        "mean": numbers(b, a),
        "var": numbers(b, a, positive=True),
        "std": numbers(a, positive=True),
        "old_mean": numbers(b, a),
        "old_std": numbers(b, a, positive=True),
    },
}

Twist = Callable[[Tensor], Any]
LAYOUTS: dict[str, Twist] = {
    "transposed": lambda x: x.mT.contiguous().mT if x.dim() >= 2 else x,
    "every second": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "an expanded row": lambda x: x[:1].expand_as(x) if x.dim() >= 2 and len(x) else x,
    "part of a larger one": lambda x: torch.cat([x, x, x], -1)[..., x.shape[-1] : 2 * x.shape[-1]],
    "a parameter": lambda x: nn.Parameter(x) if x.is_floating_point() else x,
    "wants a gradient": lambda x: x.detach().clone().requires_grad_(),
}
"""The same values in other clothes: the answer has to be the same."""
WRONG: dict[str, Twist] = {
    "float64": lambda x: x.double(),
    "bfloat16": lambda x: x.bfloat16(),
    "float16": lambda x: x.half(),
    "integers": lambda x: x.long(),
    "booleans": lambda x: x.bool(),
    "complex": lambda x: x.to(torch.complex64),
    "one dimension more": lambda x: x[None],
    "one dimension less": lambda x: x.flatten() if x.dim() != 1 else x.sum(),
    "a column more": lambda x: torch.cat([x, x[..., :1]], -1),
    "a row more": lambda x: torch.cat([x, x[:1]]) if len(x) else x.new_zeros(1, *x.shape[1:]),
    "one row": lambda x: x[:1],
    "no rows": lambda x: x[:0],
    "no columns": lambda x: x[..., :0],
    "a list": lambda x: x.tolist(),
    "an array": lambda x: x.numpy(),
    "a number": lambda _: 0.5,
    "nothing": lambda _: None,
    "a word": lambda _: "mean",
    "sparse": lambda x: x.to_sparse(),
    "on the meta device": lambda x: x.to("meta"),
}
"""Other arguments: an error, or the right answer where they happen to be right, as no bias is."""
ELSEWHERE = {"thread": in_a_thread, "fork": in_a_fork}
PLAIN_MODES = ("plain", "no_grad", "inference", *ELSEWHERE, "autocast")
MODES = (*PLAIN_MODES, "jvp", "vmap", "grad", "double backward")


@contextlib.contextmanager
def grad_mode(mode: str):
    with {
        "no_grad": torch.no_grad,
        "inference": torch.inference_mode,
        "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    }.get(mode, contextlib.nullcontext)():
        yield


def as_reference(value: Any) -> Any:
    """Plain float64 copies."""
    if isinstance(value, Tensor):
        return value.detach().double().contiguous().clone()
    if isinstance(value, list):
        return [as_reference(each) for each in value]
    return value


def assert_right(found: list[Tensor], expected: list[Tensor], dtype: torch.dtype) -> None:
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.shape == theirs.shape
        assert ours.dtype == dtype
        scale = 1.0 + theirs.abs().max().item() if theirs.numel() else 1.0
        torch.testing.assert_close(ours.detach().double(), theirs, rtol=0, atol=TOLERANCES[dtype] * scale)


def assert_clean(error: Exception, call: Call) -> None:
    """It names an argument, and no line of it is torch's own riddle."""
    names = "|".join([*inspect.signature(call.function).parameters, *call.names, "backend"])
    assert isinstance(error, CLEAN), f"{type(error).__name__}: {error}"
    assert re.match(rf"({names}|{call.function.__name__})\b", str(error)), f"{type(error).__name__}: {error}"


def outputs_in(mode: str, call: Call) -> list[Tensor]:
    """The call in some mode; forward- and reverse-mode transforms go through the first argument."""
    first = next(iter(call.arguments))
    value = call.arguments[first]

    def of_first(x: Tensor) -> tuple[Tensor, ...]:
        return tuple(call.run(arguments=call.arguments | {first: x}))

    differentiable = isinstance(value, Tensor) and value.is_floating_point()
    if not differentiable or mode in ("plain", "no_grad", "inference", "autocast"):
        with grad_mode(mode):
            return call.run()
    if mode in ELSEWHERE:
        return ELSEWHERE[mode](call.run)
    if mode == "jvp":
        return list(torch.func.jvp(of_first, (value.detach().clone(),), (torch.zeros_like(value),))[0])
    if mode == "grad":
        torch.func.grad(lambda x: sum(out.sum() for out in of_first(x)))(value.detach())
        return call.run()
    if mode == "vmap":
        once = torch.func.vmap(of_first)(value.detach()[None])
        return [out[0] for out in once]
    leaf = value.detach().clone().requires_grad_()
    outputs = of_first(leaf)
    (gradient,) = torch.autograd.grad(sum(out.sum() for out in outputs), leaf, create_graph=True)
    if gradient.requires_grad:
        gradient.sum().backward()
    return list(outputs)


@st.composite
def hostile_calls(draw: st.DrawFn) -> tuple[Call, str, bool]:
    """A call, the mode it runs in, and whether its arguments are right."""
    torch.manual_seed(draw(st.integers(0, 2**16)))
    call, table = draw(calls()), draw(st.sampled_from([{}, LAYOUTS, LAYOUTS, WRONG]))
    # What torch's own transforms say to a wrong argument, before the op is called, is torch's.
    mode = draw(st.sampled_from(PLAIN_MODES if table is WRONG else MODES))
    if table:
        for name in draw(st.lists(st.sampled_from(sorted(call.arguments)), min_size=1, max_size=2, unique=True)):
            twist = draw(st.sampled_from(sorted(table)))
            note(f"{name}: {twist}")
            value = call.arguments[name]
            if isinstance(value, list):
                index = draw(st.integers(0, len(value) - 1))
                changed: Any = [*value[:index], table[twist](value[index]), *value[index + 1 :]]
            else:
                changed = table[twist](value)
            call.arguments[name] = changed
    note(f"{call.function.__name__} in mode {mode}")
    return call, mode, table is not WRONG


def dtype_of(call: Call) -> torch.dtype:
    """The dtype of the first argument; under autocast half precision is raised to float32."""
    value = next(iter(call.arguments.values()))
    return value.dtype if isinstance(value, Tensor) and value.dtype in TOLERANCES else torch.float32


def clean_error_or_right_answer(example: tuple[Call, str, bool]) -> None:
    call, mode, right = example
    try:
        found = outputs_in(mode, call)
    except Exception as error:
        if mode == "double backward" and str(error).startswith(TWICE):
            return
        if right:
            raise
        assert_clean(error, call)
        return
    if any(isinstance(out, Tensor) and out.device.type == "meta" for out in found):
        return
    expected = call.run("reference", {name: as_reference(value) for name, value in call.arguments.items()})
    assert_right(found, expected, dtype_of(call))


def swept(examples: int) -> Any:
    """The same check of so many calls, drawn from one seed."""
    options = settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    return seed(22)(options(given(hostile_calls())(clean_error_or_right_answer)))


test_some_calls = swept(60)
test_many_calls = pytest.mark.sweep(swept(1500))


@pytest.mark.parametrize("name", sorted(OPS))
def test_every_twist_of_every_argument(name):
    """The same without chance: each wrong argument of each op, one at a time."""
    for argument in OPS[name](3, 2, 2, 2, 2):
        for change in WRONG.values():
            torch.manual_seed(0)
            call = Call(
                getattr(p3kernels, name),
                OPS[name](3, 2, 2, 2, 2),
                {"num_samples": 2, "seed": 3} if name == "mlp_mixture_log_prob" else {},
            )
            value = call.arguments[argument]
            call.arguments[argument] = [change(value[0]), *value[1:]] if isinstance(value, list) else change(value)
            try:
                found = call.run()
            except Exception as error:
                assert_clean(error, call)
                continue
            if any(out.device.type == "meta" for out in found):
                continue
            expected = call.run("reference", {key: as_reference(each) for key, each in call.arguments.items()})
            assert_right(found, expected, dtype_of(call))


@pytest.mark.parametrize("name", sorted(OPS))
def test_a_fork_of_a_process_whose_threads_have_worked(name, threads):
    """Sizes that go to torch's threads, which a child does not have: waiting for them there would never end."""
    threads(2)
    keywords = {"num_samples": 2, "seed": 3} if name == "mlp_mixture_log_prob" else {}
    call = Call(getattr(p3kernels, name), OPS[name](5000, 8, 8, 8, 4), keywords)
    expected = call.run("reference", {key: as_reference(each) for key, each in call.arguments.items()})
    assert_right(call.run(), expected, torch.float32)
    assert_right(in_a_fork(call.run), expected, torch.float32)


ESTIMATORS = {
    "mm": p3kernels.MomentMatching(),
    "cm": p3kernels.CovarianceMatching(),
    "mc": p3kernels.MonteCarlo(num_samples=3),
    "z-mean": p3kernels.LatentMean(),
    "shared": p3kernels.SharedNoise(),
}


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
@pytest.mark.parametrize("argument", ["context", "latent_mean", "latent_std", "action_std", "action"])
def test_estimators(name, argument):
    """Every wrong tensor of a policy is refused by its name, or gives what float64 gives."""
    estimator = ESTIMATORS[name]
    for twist, change in WRONG.items():
        torch.manual_seed(0)
        actor = nn.Sequential(nn.Linear(4, 5), nn.ELU(), nn.Linear(5, 2))
        given_ = {
            "context": numbers(3, 2),
            "latent_mean": numbers(3, 2),
            "latent_std": numbers(3, 2, positive=True),
            "action_std": numbers(2, positive=True),
        }
        action = numbers(3, 2)
        if argument == "action":
            action = change(action)
        else:
            given_[argument] = change(given_[argument])
        try:
            policy = estimator.policy(actor, *given_.values())
            found = policy.log_prob(action)
        except Exception as error:
            assert_clean(
                error, Call(estimator.policy, given_, names=("action", "actor", "mean", "var", "std", "weights"))
            )
            continue
        if found.device.type == "meta":
            continue
        assert found.shape == (3,), f"{twist}: {tuple(found.shape)}"
