"""What `rows` of `mlp_mixture_log_prob` promises, as tests that every backend inherits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

import p3kernels
from helpers import layered
from helpers.battery import Inputs, OpBattery, as_tuple, grouped, run
from p3kernels.reference.latent_noise import SAMPLING, latent_noise

SEED = 2**62 + 5
SIZES = {"one": (1, 1, 1, 1, 2), "odd": (7, 9, 3, 5, 11, 4), "prime": (5, 31, 13, 11, 17, 7, 3)}
"""N, B, C, Z, widths."""
KINDS = ("shuffled", "duplicates", "far")


def numbers(batch: int, kind: str) -> Tensor:
    """[B]: a shuffled minibatch of a larger rollout, repeated rows, or numbers of all sizes up to 2⁶³ − 1."""
    if kind == "shuffled":
        return torch.randperm(1000, generator=torch.Generator().manual_seed(2))[:batch]
    if kind == "duplicates":
        return torch.arange(batch) // 3
    return torch.tensor([2**63 - 1, 2**32, 2**32 - 1, 2**31, 2**40 + 3, 0]).repeat(batch)[:batch]


def without_noise(size: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Inputs:
    inputs = layered.policy(size, dtype)
    del inputs["noise"]
    return inputs


def likelihood_on(backend: str | None, num_samples: int, **options: Any) -> Callable[[Inputs], tuple[Tensor, ...]]:
    """`mlp_mixture_log_prob` of flat inputs."""
    return lambda inputs: as_tuple(
        p3kernels.mlp_mixture_log_prob(**grouped(inputs), num_samples=num_samples, backend=backend, **options)
    )


class NumberedRows:
    """Inherit, name the backend."""

    backend: ClassVar[str]
    dtype: ClassVar[torch.dtype] = torch.float32
    # Of the battery of the op: three layers, then a sum of squares over std ≥ 0.5; noise to a few roundings.
    rounding: ClassVar[float] = 256
    assert_near = OpBattery.assert_near
    assert_same = OpBattery.assert_same

    def on(self, num_samples: int, **options: Any) -> Callable[[Inputs], tuple[Tensor, ...]]:
        return likelihood_on(self.backend, num_samples, **options)

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("sampling", SAMPLING)
    @pytest.mark.parametrize("size", SIZES)
    def test_rows_name_their_noise(self, size, sampling, kind):
        """rows= gives what the reference's noise of these rows gives, in value and in every gradient."""
        samples, batch, _, columns, *_ = SIZES[size]
        inputs = without_noise(SIZES[size], self.dtype)
        rows = numbers(batch, kind)
        noise = latent_noise(SEED, samples, rows, columns, sampling, torch.float64).to(self.dtype)
        got = run(self.on(samples, seed=SEED, sampling=sampling, rows=rows), inputs)
        self.assert_same(got, run(self.on(samples, noise=noise), inputs), bitwise=False)

    @pytest.mark.parametrize("sampling", SAMPLING)
    def test_places_are_the_default(self, sampling):
        inputs = without_noise(SIZES["odd"], self.dtype)
        default = run(self.on(7, seed=SEED, sampling=sampling), inputs)
        self.assert_same(
            run(self.on(7, seed=SEED, sampling=sampling, rows=torch.arange(9)), inputs), default, bitwise=True
        )

    @pytest.mark.parametrize("sampling", SAMPLING)
    def test_a_permuted_batch_gives_permuted_results(self, sampling):
        inputs = without_noise(SIZES["prime"], self.dtype)
        order = torch.randperm(31, generator=torch.Generator().manual_seed(4))
        of_rows = ("action", "context", "latent_mean", "latent_std")
        permuted = {name: tensor[order] if name in of_rows else tensor for name, tensor in inputs.items()}
        rows = numbers(31, "shuffled")
        (expected,), gradients = run(self.on(5, seed=SEED, sampling=sampling, rows=rows), inputs)
        (got,), permuted_gradients = run(self.on(5, seed=SEED, sampling=sampling, rows=rows[order]), permuted)
        self.assert_near("log_prob", got, expected[order])
        assert (got - expected).abs().max() > 0.01  # the permutation did something
        # The incoming gradients of `run` differ from row to row, so only those of a whole backward pass compare.
        whole = torch.ones_like(got)
        for inputs_, rows_, target in ((inputs, rows, gradients), (permuted, rows[order], permuted_gradients)):
            leaves = {name: tensor.clone().requires_grad_() for name, tensor in inputs_.items()}
            (out,) = self.on(5, seed=SEED, sampling=sampling, rows=rows_)(leaves)
            found = torch.autograd.grad(out, list(leaves.values()), whole)
            target.update(zip(leaves, found, strict=True))
        for name, gradient in gradients.items():
            expected_gradient = gradient[order] if name in of_rows else gradient
            assert gradient.count_nonzero() > 0
            self.assert_near(f"gradient of {name}", permuted_gradients[name], expected_gradient)

    @pytest.mark.parametrize("sampling", SAMPLING)
    def test_a_minibatch_draws_what_the_whole_batch_drew(self, sampling):
        """Unchanged weights have a log-ratio of 0 to rounding, at most 1e-5, in shuffled minibatches, for every N."""
        batch = 53
        for samples in (1, 2, 15):
            inputs = grouped(without_noise((samples, batch, 13, 11, 17, 7, 3), self.dtype))
            options = {"num_samples": samples, "seed": SEED, "sampling": sampling, "backend": self.backend}
            old = p3kernels.mlp_mixture_log_prob(**inputs, rows=torch.arange(batch), **options)
            for part in torch.randperm(batch, generator=torch.Generator().manual_seed(1)).split(17):
                of_rows = {name: inputs[name][part] for name in ("action", "context", "latent_mean", "latent_std")}
                new = p3kernels.mlp_mixture_log_prob(**{**inputs, **of_rows}, rows=part, **options)
                assert (new - old[part]).abs().max() <= 1e-5

    def test_equal_rows_with_equal_numbers_are_equal(self):
        inputs = {name: tensor.clone() for name, tensor in without_noise(SIZES["odd"], self.dtype).items()}
        for name in ("action", "context", "latent_mean", "latent_std"):
            inputs[name][4] = inputs[name][2]
        rows = torch.arange(9)
        (own,) = self.on(7, seed=SEED, rows=rows)(inputs)
        rows[4] = 2
        (same,) = self.on(7, seed=SEED, rows=rows)(inputs)
        assert abs(own[4] - own[2]) > 1e-3
        self.assert_near("the same row twice", same[4:5], same[2:3])

    def test_layouts_of_rows(self):
        inputs = without_noise(SIZES["odd"], self.dtype)
        rows = numbers(9, "shuffled")
        spread = torch.stack([rows, rows + 1], 1)[:, 0]
        assert not spread.is_contiguous()
        expected = run(self.on(7, seed=SEED, rows=rows), inputs)
        self.assert_same(run(self.on(7, seed=SEED, rows=spread), inputs), expected, bitwise=True)
        repeated = torch.tensor([5]).expand(9)
        expected = run(self.on(7, seed=SEED, rows=repeated.clone()), inputs)
        self.assert_same(run(self.on(7, seed=SEED, rows=repeated), inputs), expected, bitwise=True)

    def test_no_rows(self):
        inputs = without_noise((7, 0, 3, 5, 11, 4), self.dtype)
        (got,), _ = run(self.on(7, seed=SEED, rows=torch.empty(0, dtype=torch.int64)), inputs)
        assert got.shape == (0,)

    def test_compile_fullgraph(self):
        inputs = without_noise(SIZES["odd"], self.dtype)
        torch._dynamo.reset()

        def function(leaves: Inputs) -> tuple[Tensor, ...]:
            rows = leaves["rows"]
            return self.on(7, seed=SEED, rows=rows)({name: leaf for name, leaf in leaves.items() if name != "rows"})

        compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
        for kind in ("shuffled", "duplicates"):  # the numbers are no constants of the graph
            rows = numbers(9, kind)
            got = run(lambda leaves, rows=rows: compiled({**leaves, "rows": rows}), inputs)
            expected = run(lambda leaves, rows=rows: function({**leaves, "rows": rows}), inputs)
            self.assert_same(got, expected, bitwise=False)
