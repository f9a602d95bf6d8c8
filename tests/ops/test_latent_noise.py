"""The noise behind `mlp_mixture_log_prob`: the generator, its distribution and schemes, one draw for all backends."""

from __future__ import annotations

import math

import pytest
import torch
from helpers import layered
from helpers.battery import BACKENDS, as_tuple, grouped, run

import p3kernels
from p3kernels.cpu import native
from p3kernels.layered.latent_noise import NoiseSource
from p3kernels.reference.latent_noise import SAMPLING, latent_noise, philox

# Random123's kat_vectors for philox4x32-10: counter, key, result.
KNOWN_ANSWERS = [
    ((0, 0, 0, 0), 0, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ((0xFFFFFFFF,) * 4, 0xFFFFFFFF_FFFFFFFF, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        0x299F31D0_A4093822,
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]
COUNT = 300_000
SIGMAS = 6
"""A statistic is allowed 6 standard errors: a false alarm in 5e8 draws of it. The seeds are fixed besides."""


def words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


def drawn(backend: str, seed: int, shape: tuple[int, int, int], sampling: str, dtype: torch.dtype) -> torch.Tensor:
    """[N, B, Z] as a backend draws it; the CPU's in tiles of uneven size."""
    samples, rows, columns = shape
    if backend == "reference":
        return latent_noise(seed, samples, rows, columns, sampling, dtype)
    noise = torch.full(shape, math.nan, dtype=dtype)
    source = NoiseSource(torch.tensor([seed]), samples, sampling, noise[0])
    for first in range(0, samples, 5):
        for begin in range(0, rows, 13):
            tile = torch.empty(min(5, samples - first), min(13, rows - begin), columns, dtype=dtype)
            source.fill(tile, first, begin)
            noise[first : first + 5, begin : begin + 13] = tile
    return noise


def standard_normals(backend: str, sampling: str, shape: tuple[int, int, int] = (15, 400, 50)) -> torch.Tensor:
    noise = drawn(backend, 5, shape, sampling, torch.float64)
    assert noise.numel() == COUNT
    return noise


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN_ANSWERS)
def test_philox_known_answers(counter, key, result):
    assert [int(word) for word in philox(key, [torch.tensor([value]) for value in counter])] == words(result)


def test_native_normals_of_the_known_answer():
    """Seed, sample, row and stream 0: Box–Muller of the first known answer, by hand."""
    uniform = [(word + 0.5) / 2**32 for word in words(KNOWN_ANSWERS[0][2])]
    expected = []
    for radius, angle in (uniform[:2], uniform[2:]):
        length, turn = math.sqrt(-2 * math.log(radius)), 2 * math.pi * angle
        expected += [length * math.cos(turn), length * math.sin(turn)]
    for dtype, tolerance in ((torch.float64, 1e-14), (torch.float32, 1e-6)):  # a few roundings of numbers near 1
        out = torch.empty(1, 1, 4, dtype=dtype)
        native.normal(0, 0, 0, 0, out)
        torch.testing.assert_close(
            out.flatten().double(), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=tolerance
        )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("sampling", SAMPLING)
def test_every_sample_is_standard_normal(sampling, backend):
    noise = standard_normals(backend, sampling).flatten()
    assert noise.isfinite().all()
    # Antithetic and Sobol samples are as good as iid in each number; as dependent ones they deviate less, not more,
    # in the mean, and √2 more at most in even moments.
    error = SIGMAS / math.sqrt(COUNT / (1 if sampling == "iid" else 2))
    assert abs(noise.mean()) <= error
    assert abs(noise.var() - 1) <= error * math.sqrt(2)
    assert abs(noise.pow(3).mean()) <= error * math.sqrt(15)
    assert abs(noise.pow(4).mean() - 3) <= error * math.sqrt(96)
    # Kolmogorov–Smirnov: P(D > √(ln(2/p) / 2n)) ≤ p; p = 1e-9, for half as many where pairs are dependent.
    ordered = torch.special.ndtr(noise.sort().values)
    steps = torch.arange(COUNT + 1, dtype=torch.float64) / COUNT
    distance = torch.maximum((steps[1:] - ordered).max(), (ordered - steps[:-1]).max())
    assert distance <= math.sqrt(math.log(2 / 1e-9) / (2 * COUNT / (1 if sampling == "iid" else 2)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_numbers_are_uncorrelated(backend):
    noise = standard_normals(backend, "iid")
    other_seed = drawn(backend, 6, tuple(noise.shape), "iid", torch.float64)
    pairs = {
        "samples": (noise[1:], noise[:-1]),
        "rows": (noise[:, 1:], noise[:, :-1]),
        "columns": (noise[..., 1:], noise[..., :-1]),
        "a block apart": (noise[..., 13:], noise[..., :-13]),
        "seeds": (noise, other_seed),
        "squares of columns": (noise[..., 1:].square() - 1, (noise[..., :-1].square() - 1) / 2),
    }
    for name, (one, other) in pairs.items():
        assert abs((one * other).mean()) <= SIGMAS / math.sqrt(one.numel()), name


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("samples", [1, 2, 7, 10])
def test_antithetic_mirrors(samples, backend):
    noise = drawn(backend, 3, (samples, 20, 6), "antithetic", torch.float32)
    half = (samples + 1) // 2
    assert torch.equal(noise[half:], -noise[: samples // 2])
    assert torch.equal(noise[:half], drawn(backend, 3, (half, 20, 6), "iid", torch.float32))


@pytest.mark.parametrize("backend", BACKENDS)
def test_schemes_reduce_the_variance_of_a_mean(backend):
    """Mean over 64 samples of a smooth, asymmetric function: antithetic beats iid, Sobol beats both by far."""
    variances = {}
    for sampling in SAMPLING:
        noise = drawn(backend, 9, (64, 500, 2), sampling, torch.float64)
        variances[sampling] = (noise + 0.1 * noise.square()).sum(-1).mean(0).var()
    assert variances["antithetic"] < 0.2 * variances["iid"]  # only the square's 2 % of the variance is left, doubled
    assert variances["sobol"] < 0.1 * variances["iid"]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("sampling", SAMPLING)
def test_rows_differ(sampling, backend):
    noise = drawn(backend, 3, (8, 40, 4), sampling, torch.float64)
    distances = torch.cdist(noise.transpose(0, 1).flatten(1), noise.transpose(0, 1).flatten(1))
    assert (distances + 10 * torch.eye(40)).min() > 0.1


@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize("columns", [1, 3, 4, 5, 16, 129, 300])
def test_backends_draw_the_same(columns, sampling):
    shape = (11, 27, columns)
    for seed in (0, 1, 2**31, 2**62 + 12345, 2**63 - 1):
        one = drawn("reference", seed, shape, sampling, torch.float64)
        other = drawn("cpu", seed, shape, sampling, torch.float64)
        # Roundings of log, sqrt and cos; Sobol's ndtri is steeper where uniforms are 1e-16 from 0 or 1.
        torch.testing.assert_close(one, other, rtol=0, atol=1e-13 if sampling != "sobol" else 1e-9)


@pytest.mark.parametrize("sampling", SAMPLING)
def test_float32_noise_is_the_float64_noise_rounded(sampling):
    shape = (15, 400, 50)
    exact = drawn("reference", 5, shape, sampling, torch.float64)
    error = (drawn("cpu", 5, shape, sampling, torch.float32).double() - exact).abs().flatten()
    # A uniform near 1 is 2^-25 off in float32, which moves the radius r by 2^-25 / r; r < 0.006 has probability 2e-5.
    assert error.kthvalue(int(0.9999 * COUNT)).values <= 5e-6
    assert error.max() <= 2.0**-12


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("sampling", SAMPLING)
def test_a_seed_is_its_noise(sampling, backend):
    """seed= gives what noise=latent_noise(seed) gives, in value and in every gradient."""
    named = layered.policy((7, 9, 3, 6, 7, 4), torch.float64)
    noise = latent_noise(123, 7, 9, 6, sampling, torch.float64)
    del named["noise"]

    def call(**options):
        return lambda inputs: as_tuple(
            p3kernels.mlp_mixture_log_prob(**grouped(inputs), num_samples=7, backend=backend, **options)
        )

    by_noise = run(call(noise=noise), named)
    for seed in (123, torch.tensor([123]), torch.tensor(123)):
        by_seed = run(call(seed=seed, sampling=sampling), named)
        torch.testing.assert_close(by_seed, by_noise, rtol=1e-10, atol=1e-10)  # noise agrees to 1e-13


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("sampling", SAMPLING)
def test_seeds(sampling, backend):
    named = layered.policy_without_noise(dtype=torch.float32)

    def log_prob(seed):
        return p3kernels.mlp_mixture_log_prob(**named, num_samples=6, seed=seed, sampling=sampling, backend=backend)

    layered.assert_draws_follow_their_seed(log_prob)


@pytest.mark.parametrize(
    ("sampling", "seed", "backend"),
    [
        *(("iid", 7, "cpu"), ("iid", None, "cpu"), ("antithetic", None, "cpu"), ("sobol", None, "cpu")),
        *(("iid", None, "reference"), ("sobol", None, "reference")),
        # As the first and the second, but that it takes the compiler long.
        pytest.param("iid", 7, "reference", marks=pytest.mark.sweep),
        pytest.param("antithetic", None, "reference", marks=pytest.mark.sweep),
    ],
)
def test_drawing_does_not_break_a_graph(sampling, seed, backend):
    named = layered.policy_without_noise(dtype=torch.float32)
    leaf = named["latent_std"].requires_grad_()
    torch._dynamo.reset()

    def function():
        return p3kernels.mlp_mixture_log_prob(**named, num_samples=6, seed=seed, sampling=sampling, backend=backend)

    torch.manual_seed(3)
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")()
    torch.manual_seed(3)
    eager = function()
    # The same operator on the same seed; the reference's sums may be fused.
    torch.testing.assert_close(compiled, eager, rtol=1e-5, atol=1e-5)
    gradients = [torch.autograd.grad(out.sum(), leaf)[0] for out in (compiled, eager)]
    assert gradients[1].count_nonzero() > 0
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_noise_that_requires_a_gradient(backend):
    named = layered.policy_without_noise()
    noise = torch.randn(6, 9, 2, dtype=torch.float64, requires_grad=True)

    def log_prob(x):
        return p3kernels.mlp_mixture_log_prob(**named, num_samples=6, noise=x, backend=backend)

    assert torch.autograd.gradcheck(log_prob, noise)
    (gradient,) = torch.autograd.grad(log_prob(noise).sum(), noise)
    assert (gradient != 0).all()
