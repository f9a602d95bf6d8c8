from __future__ import annotations

import dataclasses
import itertools
import math

import pytest
import torch
from helpers import layered
from helpers.battery import as_tuple, grouped, run, transposed
from helpers.device_battery import launches  # noqa: F401  # a fixture
from helpers.device_cases import MlpMixtureLogProbCases
from helpers.memory import peak_bytes
from helpers.numbered_rows import likelihood_on as on
from helpers.numbered_rows import without_noise

import p3kernels
from p3kernels import reference
from p3kernels.activations import ELU
from p3kernels.reference.latent_noise import SAMPLING, latent_noise
from triton_kernels import mlp_mixture_log_prob as kernel
from triton_kernels import sampled_gradients
from triton_kernels.launch import needs_int64
from triton_kernels.proof.record import recording


class TestMlpMixtureLogProb(MlpMixtureLogProbCases):
    @pytest.mark.parametrize("widths", [(3,), (7, 3)])
    @pytest.mark.parametrize(("context", "latent"), [(0, 5), (4, 0)])
    def test_without_context_or_latent(self, context, latent, widths):
        inputs = self.make_inputs((6, 9, context, latent, *widths), torch.float32)
        exact, exact_gradients = run(self.twin, layered.cast(inputs, torch.float64))
        outputs, gradients = run(self.call, inputs)
        self.assert_near("log_prob", outputs[0], exact[0])
        for name, gradient in gradients.items():
            self.assert_near(f"gradient of {name}", gradient, exact_gradients[name])

    @pytest.mark.parametrize("scratch", [1, 4 * 24 * 7, 4 * 24 * 62])
    def test_tiles_of_any_size(self, scratch, monkeypatch):
        """One entry, some rows, some samples of all rows: with rests, in several parts of the entries."""
        monkeypatch.setattr(kernel, "SCRATCH_BYTES", scratch)
        monkeypatch.setattr(sampled_gradients, "SMALLEST_PART", 16)
        size = self.sizes["prime"] if scratch > 1 else (2, 3, 3, 2, 7, 5)
        self.assert_true_to_reference(self.make_inputs(size, torch.float32), "prime")

    def test_gradients_only_where_asked(self):
        """One by one, of each kind."""
        inputs = self.make_inputs(self.sizes["odd"], torch.float32)
        _, everything = run(self.call, inputs)
        for name in ("action", "latent_std", "weights.1", "std", "noise"):
            _, gradients = run(self.call, inputs, [name])
            assert [other for other, gradient in gradients.items() if gradient is not None] == [name]
            assert torch.equal(gradients[name], everything[name])

    @pytest.mark.parametrize("layout", [transposed])
    def test_opcheck(self, layout):
        """With noise that is given and with noise of numbered rows; that of all rows in `make test-all`."""
        self.opchecked = self.opchecked[::2]
        super().test_opcheck(layout)


BATTERY = TestMlpMixtureLogProb()


@pytest.mark.parametrize("scratch", [2**28, 4 * 24 * 7, 4 * 24 * 62])
def test_std_of_each_row(scratch, monkeypatch):
    """std [B, A], also from tile to tile."""
    monkeypatch.setattr(kernel, "SCRATCH_BYTES", scratch)
    inputs = layered.policy(TestMlpMixtureLogProb.sizes["prime"], torch.float32, row_std=True)
    BATTERY.assert_true_to_reference(inputs, "prime")


@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize("samples", [1, 7])
@pytest.mark.parametrize("scratch", [2**28, 4 * 11 * 9 * 2])
def test_a_seed_is_its_noise(scratch, samples, sampling, monkeypatch):
    """seed= gives what noise=latent_noise(seed) gives, in value and in every gradient, whatever the tiles."""
    monkeypatch.setattr(kernel, "SCRATCH_BYTES", scratch)
    inputs = without_noise((samples, 9, 3, 6, 11, 4))
    noise = latent_noise(123, samples, 9, 6, sampling, torch.float32)
    expected = run(on("triton", samples, noise=noise), inputs)
    got = run(on("triton", samples, seed=123, sampling=sampling), inputs)
    BATTERY.assert_same(got, expected, bitwise=False)  # noise agrees to a few roundings


@pytest.mark.parametrize("sampling", SAMPLING)
def test_backends_draw_the_same(sampling):
    inputs = without_noise((7, 9, 3, 29, 11, 4))
    got, expected = (run(on(name, 7, seed=2**62 + 5, sampling=sampling), inputs) for name in ("triton", "reference"))
    BATTERY.assert_same(got, expected, bitwise=False)


@pytest.mark.parametrize("sampling", SAMPLING)
def test_seeds(sampling):
    inputs = without_noise((6, 9, 3, 2, 7, 4))

    def log_prob(seed):
        return on("triton", 6, seed=seed, sampling=sampling)(inputs)[0]

    layered.assert_draws_follow_their_seed(log_prob)


@pytest.mark.parametrize("sampling", SAMPLING)
def test_drawing_does_not_break_a_graph(sampling):
    inputs = without_noise((4, 5, 3, 2, 7, 4))
    torch._dynamo.reset()
    function = on("triton", 4, sampling=sampling)
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    torch.manual_seed(3)
    got = run(compiled, inputs)
    torch.manual_seed(3)
    BATTERY.assert_same(got, run(function, inputs), bitwise=True)


def test_the_seed_is_read_by_the_kernel():
    """A captured graph replays with the seed that stands in the tensor then: the kernels get its address."""
    with recording() as found, torch.device("meta"):
        problem = meta_problem(rows=8, num_samples=3)
        kernel.backward(problem, kernel.forward(problem), torch.empty(8), False)
    seeded = [launch.arguments["seed_ptr"] for launch in found if "seed_ptr" in launch.arguments]
    assert len(seeded) == 3  # drawn in both passes, and for the gradient of the latent's std
    assert all(seed is problem.seed for seed in seeded)


def test_device_of_the_seed():
    inputs = without_noise((4, 5, 3, 2, 7, 4))
    for sampling in SAMPLING:
        with pytest.raises(ValueError, match="seed: expected a tensor on the cpu, got one on meta"):
            on("triton", 4, seed=torch.zeros(1, dtype=torch.int64, device="meta"), sampling=sampling)(inputs)


def meta_problem(rows: int, num_samples: int, widths=(209, 512, 256, 128, 29), latent: int = 110) -> kernel.Problem:
    """The G1 actor; make it on the meta device."""
    layers = list(itertools.pairwise(widths))
    return kernel.Problem(
        torch.empty(rows, widths[-1]),
        torch.empty(rows, widths[0] - latent),
        torch.empty(rows, latent),
        torch.empty(rows, latent),
        [torch.empty(out, width) for width, out in layers],
        [torch.empty(out) for _, out in layers],
        torch.empty(widths[-1]),
        None,
        None,
        torch.zeros(1, dtype=torch.int64),
        None,
        num_samples,
        False,
        ELU,
        1.0,
        "ieee",
    )


def test_context_of_any_strides_is_packed():
    """Offsets within a block of a product are 32-bit; packing, which has 64 bits, brings rows together."""
    with recording() as found, torch.device("meta"):
        context = torch.empty_strided((8, 99), (2**22, 1))
        problem = dataclasses.replace(meta_problem(rows=8, num_samples=3), context=context)
        kernel.backward(problem, torch.empty(8), torch.empty(8), False)
    kernels = ("sampled_linear_fwd_kernel", "sampled_linear_bwd_weight_kernel")
    rows = [call.arguments["stride_x"] for call in found if call.name in kernels and call.arguments["inputs"] == 99]
    assert rows == [112, 112]


def test_launches(launches, monkeypatch):  # noqa: F811
    """Four layers: packing, the context, 5 a tile; backward 13 a tile, and 10 for packing, the context and the sums."""
    inputs = {name: tensor.requires_grad_() for name, tensor in without_noise((6, 9, 3, 2, 7, 6, 5, 4)).items()}
    for tiles, scratch in ((1, 2**28), (3, 4 * 18 * 9 * 2)):
        monkeypatch.setattr(kernel, "SCRATCH_BYTES", scratch)
        launches.clear()
        (log_prob,) = on("triton", 6, seed=1)(inputs)
        assert len(launches) == 2 + 5 * tiles
        launches.clear()
        log_prob.sum().backward()
        assert len(launches) == 10 + 13 * tiles


@pytest.mark.parametrize("rows", [24576, 4096, 200_000, 5])
@pytest.mark.parametrize("num_samples", [1, 15, 1000])
def test_tiles_fit_the_scratch(rows, num_samples):
    with torch.device("meta"):
        problem = meta_problem(rows, num_samples)
        samples, tile_rows = problem.tile_size()
        entries = samples * tile_rows
        assert entries * (512 + 256 + 128) * 4 <= kernel.SCRATCH_BYTES
        tiles = list(problem.tiles())
        assert sum(tile.latent.entries for tile in tiles) == rows * num_samples
        assert not needs_int64(*(torch.empty(entries, width) for width in (512, 110)))
        assert len(tiles) == -(-rows // tile_rows) * -(-num_samples // samples)


def peak(num_samples: int, gradients: bool, backend: str = "triton") -> int:
    size = (1, 32, 4, 4, 16, 16, 4)
    inputs = {name: tensor.requires_grad_(gradients) for name, tensor in without_noise(size).items()}

    def call() -> None:
        out = on(backend, num_samples, seed=1)(inputs)[0]
        if gradients:
            out.sum().backward()

    return peak_bytes(call)


def test_memory_is_flat_in_the_number_of_samples(monkeypatch):
    monkeypatch.setattr(kernel, "SCRATCH_BYTES", 4 * 32 * 32 * 2)
    for gradients in (False, True):
        peak(2, gradients)  # of the first call the allocator's record has what is kept, and lacks what was there
        assert peak(10, gradients) <= 1.05 * peak(2, gradients)
    # The measure sees growth where there is some: the expanded computation.
    assert peak(10, True, "reference") > 3 * peak(2, True, "reference")


def test_largest_allocation_of_the_g1_actor_does_not_grow(monkeypatch):
    sizes: list[int] = []
    allocate = torch.empty

    def recorded(*args, **kwargs):
        tensor = allocate(*args, **kwargs)
        sizes.append(tensor.numel() * tensor.element_size())
        return tensor

    totals = {}
    for num_samples in (15, 150, 1500):
        with recording(), torch.device("meta"):
            problem = meta_problem(24576, num_samples)
            sizes.clear()
            monkeypatch.setattr(kernel.torch, "empty", recorded)
            log_prob = kernel.forward(problem)
            kernel.backward(problem, log_prob, log_prob, False)
            monkeypatch.setattr(kernel.torch, "empty", allocate)
        totals[num_samples] = (max(sizes), sum(sizes))
    assert totals[15] == totals[150] == totals[1500]
    assert totals[15][1] < 1.1e9


def test_a_row_without_likelihood(monkeypatch):
    """−inf, and the other rows' gradients are as if it were not there, also from tile to tile."""
    monkeypatch.setattr(kernel, "SCRATCH_BYTES", 4 * 11 * 9 * 2)
    inputs = without_noise((6, 9, 3, 2, 11, 4))
    inputs["action"][2] = 1e30
    leaves = {name: tensor.requires_grad_() for name, tensor in inputs.items()}
    (got,) = on("triton", 6, seed=3)(leaves)
    assert got[2] == -math.inf
    for gradient in torch.autograd.grad(got, list(leaves.values()), torch.ones_like(got)):
        assert gradient.isfinite().all()
        assert gradient.count_nonzero() > 0


@pytest.mark.parametrize("poison", ["action", "context", "latent_mean", "latent_std"])
def test_nan_stays_in_its_row(poison):
    inputs = without_noise((6, 9, 3, 2, 11, 4))
    inputs[poison][4, 1] = math.nan
    (got,) = on("triton", 6, seed=3)(inputs)
    assert got.isnan().nonzero().flatten().tolist() == [4]


def test_noise_that_requires_a_gradient():
    inputs = layered.policy((6, 9, 3, 5, 11, 4), torch.float32)
    _, gradients = run(BATTERY.call, inputs, ["noise"])
    _, expected = run(BATTERY.twin, layered.cast(inputs, torch.float64), ["noise"])
    assert (gradients["noise"] != 0).all()
    BATTERY.assert_near("gradient of noise", gradients["noise"], expected["noise"])


def test_missing_biases():
    inputs = {n: t for n, t in layered.policy((6, 9, 3, 2, 7, 4), torch.float32).items() if not n.startswith("biases")}
    got = run(on("triton", 6, biases=[None, None]), inputs)
    expected = run(
        lambda x: as_tuple(reference.mlp_mixture_log_prob(**grouped(x), biases=[None, None])),
        layered.cast(inputs, torch.float64),
    )
    for name, gradient in got[1].items():
        BATTERY.assert_near(f"gradient of {name}", gradient, expected[1][name])
    BATTERY.assert_near("log_prob", got[0][0], expected[0][0])


def test_bf16_rounds_the_operands_and_nothing_else():
    """One layer without latent inputs: context · W is all there is to round."""
    inputs = layered.policy((2, 9, 5, 0, 4), torch.float32)
    low = {name: inputs[name].bfloat16().float() for name in ("context", "weights.0")}
    rounded = p3kernels.mlp_mixture_log_prob(**grouped(inputs), num_samples=2, precision="bf16", backend="triton")
    BATTERY.assert_near("log_prob", rounded, BATTERY.twin(layered.cast({**inputs, **low}, torch.float64))[0])
    assert not torch.equal(rounded, BATTERY.call(inputs)[0])


@pytest.mark.parametrize("precision", ["tf32x3", "tf32", "bf16"])
def test_precisions_run(precision):
    inputs = layered.policy(TestMlpMixtureLogProb.sizes["odd"], torch.float32)
    got = run(on("triton", 7, precision=precision), inputs)
    expected = run(BATTERY.call, inputs)
    tolerance = {"tf32x3": 1e-5, "tf32": 0.02, "bf16": 0.1}[
        precision
    ]  # operands of 8 bits, of 11; tf32x3 is float32 here
    for value, other in zip((*got[0], *got[1].values()), (*expected[0], *expected[1].values()), strict=True):
        assert (value - other).abs().max() <= tolerance * other.abs().max()


def test_precision_is_the_triton_backends_own():
    inputs = layered.policy(TestMlpMixtureLogProb.sizes["odd"], torch.float32)
    with pytest.raises(ValueError, match=r"precision: expected one of ieee, .* got 'fp8'"):
        on("triton", 7, precision="fp8")(inputs)
    with pytest.raises(ValueError, match="precision: 'tf32' is only for the triton backend, got the cpu backend"):
        on("cpu", 7, precision="tf32")(inputs)
