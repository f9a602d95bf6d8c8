"""What an update allocates, keeps, moves and computes: counted operation by operation as it runs.

An update "as on a GPU" runs on a CPU that stands in for one: everything takes the way it takes on a GPU, torch's
operations compute on the CPU, and Triton's kernels are counted in place of being started. What they would have written
is whatever was there: on a GPU an update does the same whatever the numbers are.

Counted, not measured: tensors as they are, without an allocator's rounding and cache, without scratch memory inside
torch's operations, and without what a simulator or a driver takes. A torch operation counts as one kernel: some are
two or three on a GPU (a convolution and its bias, a norm of many tensors), fills of fresh memory among them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten
from torch.utils.flop_counter import flop_registry

from p3kernels.backends import standing_in_for_a_gpu
from trainer.training.synthetic import fill, make_algorithm
from triton_kernels.launch import started_instead
from triton_kernels.proof.model import least_seconds

_KEPT_ON_A_CPU = "p3kernels::mlp_mixture_log_prob_cpu"
"""Its second output caches activations, which the Triton operator computes again."""
_NO_KERNEL = ("aten::empty", "aten::new_empty", "aten::empty_like", "aten::empty_strided", "profiler::")


@dataclasses.dataclass(frozen=True)
class Size:
    """A tensor without its numbers."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    def at(self, other: Size, share: float) -> Size:
        """Its sizes at another number of environments, as those of `Call.at`."""
        return Size(_between(self.shape, other.shape, share), _between(self.stride, other.stride, share), self.dtype)

    def tensor(self) -> Tensor:
        """One of this size, whose memory nobody has touched."""
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype)


@dataclasses.dataclass(frozen=True)
class Call:
    """One call of an operator of ours."""

    operator: str
    """Its name: "p3kernels::mlp_moments_triton"."""
    arguments: tuple[Any, ...]
    """With a `Size` in place of each tensor."""
    live: float
    """Bytes that the update had allocated before it."""
    times: int = 1
    """How often an update makes it."""

    def at(self, other: Call, share: float) -> Call:
        """At another number of environments, from the calls at two."""
        assert self.operator == other.operator
        one, spec = tree_flatten(self.arguments, is_leaf=lambda leaf: isinstance(leaf, Size))
        two, _ = tree_flatten(other.arguments, is_leaf=lambda leaf: isinstance(leaf, Size))
        leaves = [a.at(b, share) if isinstance(a, Size) else a for a, b in zip(one, two, strict=True)]
        arguments = tree_unflatten(leaves, spec)
        return Call(self.operator, arguments, self.live + share * (other.live - self.live), self.times)


def _between(one: Sequence[int], two: Sequence[int], share: float) -> tuple[int, ...]:
    return tuple(round(a + share * (b - a)) for a, b in zip(one, two, strict=True))


@dataclasses.dataclass(frozen=True)
class Count:
    """What one update of some number of environments takes; every number is linear in that number."""

    weights: float
    """Bytes of parameters and statistics."""
    training: float
    """Bytes of gradients, Adam's moments and the copy of the last good state."""
    rollout: float
    """Bytes of the stored rollout."""
    saved: float
    """Bytes saved for the backward pass, where they are most: of one minibatch."""
    peak: float
    """Bytes that the update has allocated, where they are most, inside of our operators apart; `saved` is in it."""
    moved: float
    """Bytes that torch's operations read and write."""
    flops: float
    """Floating-point operations of products and convolutions that torch knows."""
    launches: float
    """Torch's operations that are not views: about as many kernels."""
    minibatch_launches: float
    """Kernels of one minibatch, those that our operators start among them."""
    seconds: float
    """Least on an H100 with the products in float32, operation by operation."""
    seconds_tf32: float
    """The same with the products in TF32."""
    calls: tuple[Call, ...] = ()
    """What was asked of our operators, which grow by tiles: `operators.totals` counts them at their own sizes."""
    live: tuple[float, ...] = ()
    """Bytes that were allocated after each allocation: `peak` is the most of them, at other sizes another one."""
    held: tuple[float, ...] = ()
    """Bytes that were saved for the backward pass, likewise."""

    def numbers(self) -> dict[str, float]:
        """What is linear in the environments, by name."""
        lists = ("calls", "live", "held")
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in lists}

    def at(self, other: Count, num_envs: tuple[int, int], target: float) -> Count:
        """At `target` environments, from this count at the first of `num_envs` and the other at the second."""
        share = (target - num_envs[0]) / (num_envs[1] - num_envs[0])

        def between(ones: Iterable[float], twos: Iterable[float]) -> tuple[float, ...]:
            return tuple(one + share * (two - one) for one, two in zip(ones, twos, strict=True))

        numbers = dict(zip(self.numbers(), between(self.numbers().values(), other.numbers().values()), strict=True))
        live, held = between(self.live, other.live), between(self.held, other.held)
        numbers |= {"peak": max(live, default=numbers["peak"]), "saved": max(held, default=numbers["saved"])}
        calls = tuple(one.at(two, share) for one, two in zip(self.calls, other.calls, strict=True))
        return Count(**numbers, calls=calls, live=live, held=held)


class Counter(TorchDispatchMode):
    """While entered, counts the operations of this thread and what they allocate.

    Attributes:
        live: Bytes allocated since it was entered and still there.
        peak: The most that `live` was.
        saved: Bytes of those and of others that the autograd graph holds.
        saved_peak: The most that `saved` was.
    """

    def __init__(self, uncounted: Iterable[Tensor] = (), *, as_on_gpu: bool = False) -> None:
        super().__init__()
        self._as_on_gpu = as_on_gpu
        self.live = self.peak = self.saved = self.saved_peak = 0
        self.moved = self.flops = self.launches = self.operator_launches = 0
        self.seconds = self.seconds_tf32 = 0.0
        self.calls: list[Call] = []
        self.lives: list[int] = []
        self.helds: list[int] = []
        self._inside = False
        self._alive: dict[int, int] = {}
        self._held: dict[int, int] = {}
        self._uncounted = {_key(tensor) for tensor in uncounted}
        self._caches: set[int] = set()

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """Operations and saved tensors alike."""
        with contextlib.ExitStack() as stack:
            if self._as_on_gpu:
                stack.enter_context(standing_in_for_a_gpu(lambda: _Inside(self)))
                stack.enter_context(started_instead(self._started))
            stack.enter_context(self)
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor))
            yield

    def _started(self, kernel: Any, grid: int, arguments: Any, config: Any) -> None:
        self.operator_launches += 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs the operation and counts it."""
        kwargs = kwargs or {}
        before = {_key(tensor) for tensor in _tensors((args, kwargs))}
        name = func._schema.name
        if self._as_on_gpu and name.startswith("p3kernels::"):
            return self._call(func, args, kwargs, before)
        out = func(*args, **kwargs)
        if name == _KEPT_ON_A_CPU:
            self._caches.add(_key(out[1]))
            weakref.finalize(out[1].untyped_storage(), self._caches.discard, _key(out[1]))
        for tensor in _tensors(out):
            if _key(tensor) not in before:
                self._allocated(tensor)
        if not func.is_view and not name.startswith(_NO_KERNEL):
            self._ran(func, name, args, kwargs, out)
        return out

    def _call(self, func: Any, args: Any, kwargs: Any, before: set[int]) -> Any:
        """Runs an operator of ours: what it starts counts, its memory as far as it is there afterwards."""
        sizes = tree_map(lambda leaf: _size(leaf) if isinstance(leaf, Tensor) else leaf, (*args, *kwargs.values()))
        self.calls.append(Call(func._schema.name, sizes, self.live))
        self._inside = True
        out = func(*args, **kwargs)
        self._inside = False
        for tensor in _tensors(out):
            if _key(tensor) not in before:
                self._allocated(tensor)
        self._note_live()
        return out

    def _note_live(self) -> None:
        self.peak = max(self.peak, self.live)
        self.lives.append(self.live)

    def inside(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Runs an operation of an operator of ours."""
        before = {_key(tensor) for tensor in _tensors((args, kwargs))}
        out = func(*args, **kwargs)
        for tensor in _tensors(out):
            if _key(tensor) not in before:
                self._allocated(tensor)
        self.operator_launches += not func.is_view and not func._schema.name.startswith(_NO_KERNEL)
        return out

    def _ran(self, func: Any, name: str, args: Any, kwargs: Any, out: Any) -> None:
        tensors = [tensor for tensor in _tensors((args, kwargs, out)) if _key(tensor) not in self._caches]
        moved = sum(min(t.numel() * t.element_size(), t.untyped_storage().nbytes()) for t in tensors)
        self.moved += moved
        self.launches += 1
        formula = flop_registry.get(func._overloadpacket)
        flops = formula(*args, **kwargs, out_val=out) if formula is not None else 0
        self.flops += flops
        if not name.startswith("p3kernels::"):  # whose operations torch does not know
            self.seconds += max(least_seconds(moved, flops, "ieee"))
            self.seconds_tf32 += max(least_seconds(moved, flops, "tf32"))

    def totals(self) -> dict[str, float]:
        """Totals of everything so far, by the names of `Count`."""
        names = ("peak", "moved", "flops", "launches", "operator_launches", "seconds", "seconds_tf32")
        return {**{name: getattr(self, name) for name in names}, "calls": len(self.calls), "lives": len(self.lives)}

    def _allocated(self, tensor: Tensor) -> None:
        key, size = _key(tensor), tensor.untyped_storage().nbytes()
        if key in self._alive or key in self._caches:
            return
        self._alive[key] = size
        self.live += size
        if not self._inside:
            self._note_live()
        weakref.finalize(tensor.untyped_storage(), self._freed, key)

    def _freed(self, key: int) -> None:
        self.live -= self._alive.pop(key)

    def _pack(self, tensor: Tensor) -> Tensor:
        key, size = _key(tensor), tensor.untyped_storage().nbytes()
        if key not in self._held and key not in self._uncounted | self._caches:
            self._held[key] = size
            self.saved += size
            self.saved_peak = max(self.saved_peak, self.saved)
            weakref.finalize(tensor.untyped_storage(), self._released, key)
        self.helds.append(self.saved)
        return tensor.detach()  # the tensor itself, where it is the operation's output, would keep itself alive

    def _released(self, key: int) -> None:
        self.saved -= self._held.pop(key)


class _Inside(TorchDispatchMode):
    """What an operator of ours does, told to a counter."""

    def __init__(self, counter: Counter) -> None:
        super().__init__()
        self._counter = counter

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs the operation and counts it."""
        return self._counter.inside(func, args, kwargs or {})


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _key(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _size(tensor: Tensor) -> Size:
    return Size(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype)


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum({_key(tensor): tensor.untyped_storage().nbytes() for tensor in tensors}.values())


def count_update(method: str, num_envs: int, backend: str | None, *, as_on_gpu: bool = True) -> Count:
    """One real update by `method` at the paper's network sizes, 24 steps, 5 epochs of 4 minibatches.

    One epoch runs, and counts five times.

    Args:
        method: A --method of `p3 train`.
        num_envs: At least 48: smaller minibatches go another way through the encoder.
        backend: Backend of the estimator: "reference" is plain torch, layer by layer; None is our operators.
        as_on_gpu: Whether the update goes the way of a GPU.
    """
    if as_on_gpu and importlib.util.find_spec("triton") is None:
        raise ValueError("an update as on a GPU needs triton to be counted; pip install 'p3kernels[triton]' (Linux)")
    algorithm, observations = make_algorithm(method, num_envs)
    networks = (algorithm.actor, algorithm.critic)
    estimator: Any = algorithm.actor.estimator  # a dataclass, whatever it estimates by
    algorithm.actor.estimator = dataclasses.replace(estimator, backend=backend)
    epochs, algorithm.num_learning_epochs = algorithm.num_learning_epochs, 1
    fill(algorithm, observations)
    algorithm.update()  # makes the optimiser's state
    fill(algorithm, observations)
    states = [tensor for net in networks for tensor in (*net.parameters(), *net.buffers())]
    counter, phases = Counter(states, as_on_gpu=as_on_gpu), {}
    if as_on_gpu:
        algorithm.deferred = True
        algorithm.set_learning_rate(algorithm.learning_rate)
        # Numbers mean nothing here: nothing that is not finite is explained or mended, no rate follows a KL.
        algorithm.schedule = "fixed"
        algorithm._left_out_unseen = lambda *_, **__: None  # type: ignore[method-assign]
        algorithm._mend_weights = lambda when: None  # type: ignore[method-assign]
        algorithm.report = lambda _: None
    algorithm.on_phase = lambda name: phases.update({name: counter.totals()})
    with counter.counting():
        algorithm.update()
    prepared, trained, ended = phases["prepared"], phases["trained"], counter.totals()
    linear = ("moved", "flops", "launches", "seconds", "seconds_tf32")
    totals = {name: ended[name] + (epochs - 1) * (trained[name] - prepared[name]) for name in linear}
    launched = (trained[name] - prepared[name] for name in ("launches", "operator_launches"))
    totals["minibatch_launches"] = sum(launched) / algorithm.num_mini_batches
    of_epoch = range(int(prepared["calls"]), int(trained["calls"]))
    calls = [dataclasses.replace(c, times=epochs if at in of_epoch else 1) for at, c in enumerate(counter.calls)]
    gradients = [p.grad for net in networks for p in net.parameters() if p.grad is not None]
    moments = _tensors(list(algorithm.optimizer.state.values()))
    storage = algorithm.storage
    stored = _tensors([list(storage.observations.values()), *(getattr(storage, name) for name in vars(storage))])
    return Count(
        weights=_bytes(states),
        training=_bytes(gradients) + 2 * _bytes(moments) + _bytes(states),
        rollout=_bytes(stored),
        saved=counter.saved_peak,
        # Not that of the last phase, which copies the weights: at many environments it is never there.
        peak=trained["peak"],
        **totals,
        calls=tuple(calls),
        live=tuple(counter.lives[: int(trained["lives"])]),
        held=tuple(counter.helds),
    )
