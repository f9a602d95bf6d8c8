from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from helpers import layered
from helpers.battery import grouped
from helpers.device_cases import LinearEluMomentsCases, MlpMomentsCases

import p3kernels
from p3kernels import reference
from p3kernels.cuda import one_launch
from triton_kernels.proof.actor import ACTOR


class TestLinearEluMoments(LinearEluMomentsCases):
    backend = "cuda"
    layout_invariant = False
    test_compile_fullgraph = None  # the same operators as those of mlp_moments
    test_compile_with_dynamic_shapes = None


class TestMlpMoments(MlpMomentsCases):
    backend = "cuda"
    layout_invariant = False

    @pytest.mark.parametrize(("activation", "parameter"), [("relu", None), ("leaky_relu", 0.2)])
    def test_other_activations(self, activation, parameter):
        self.options = {"activation": activation, "activation_parameter": parameter}
        self.assert_true_to_reference(self.make_inputs(self.sizes["prime"], torch.float32), "prime")

    def test_deep_network(self):
        """More layers than one launch takes."""
        size = (5, 4, 3, *[6, 5] * 5)
        self.assert_true_to_reference(self.make_inputs(size, torch.float32), "odd")
        inputs = self.make_inputs(size, torch.float32)
        self.assert_near("mean", self.call(inputs)[0], self.twin(layered.cast(inputs, torch.float64))[0])


class TestOneLaunch(MlpMomentsCases):
    """Without a gradient: what the battery tests of values, once more in one launch."""

    backend = "cuda"
    sizes: ClassVar = {
        **MlpMomentsCases.sizes,
        "wide": (9, 21, 5, 519, 13),  # more outputs than a pass of the small tile makes
        "no latent": (9, 5, 0, 4, 3),
        "all latent": (17, 5, 5, 4, 3),
        "one layer": (9, 12, 2, 3),
        "more rows than processors": (2113, 6, 3, 5, 2),  # the large tile
    }

    @pytest.mark.parametrize("size", list(sizes))
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
    def test_values(self, size, dtype, count_launches):
        inputs = self.make_inputs(self.sizes[size], dtype)
        outputs = []
        assert count_launches(lambda: outputs.extend(self.call(inputs))) == (0 if size == "empty" else 1)
        exact = self.twin(layered.cast(inputs, torch.float64))
        plain = self.twin(layered.cast(inputs, torch.float32))
        for index, out in enumerate(outputs):
            assert out.dtype == torch.float32
            self.assert_near(f"output {index}", out, exact[index], plain[index])


# Values alone: gradients are TestMlpMoments'.
for _name in [name for name in dir(MlpMomentsCases) if name.startswith("test_")]:
    setattr(TestOneLaunch, _name, None)


def actor(rows: int, widths: tuple[int, ...] = ACTOR, stochastic: int = 110, dtype: torch.dtype = torch.float32):
    generator = torch.Generator().manual_seed(8)
    named = layered.moments(generator, rows, widths[0], stochastic)
    return grouped(layered.cast({**named, **layered.layers(generator, widths)}, dtype))


def doubled(arguments):
    return {
        name: [t.double() for t in value] if isinstance(value, list) else value.double()
        for name, value in arguments.items()
    }


@pytest.mark.parametrize("rows", [1, 19])
def test_the_g1_actor(rows, count_launches):
    arguments = actor(rows)
    out = []
    assert count_launches(lambda: out.extend(p3kernels.mlp_moments(**arguments, backend="cuda"))) == 1
    for got, expected in zip(out, reference.mlp_moments(**doubled(arguments)), strict=True):
        assert (got - expected).abs().max() <= 3e-6 * expected.abs().max()  # sums of up to 512 roundings of 6e-8


def test_mixed_weights_and_missing_biases():
    arguments = actor(5, (6, 9, 8, 3), 4)
    arguments["weights"][1] = arguments["weights"][1].bfloat16()
    expected = reference.mlp_moments(**doubled(arguments))
    for got, value in zip(p3kernels.mlp_moments(**arguments, backend="cuda"), expected, strict=True):
        torch.testing.assert_close(got.double(), value, rtol=1e-5, atol=1e-6)
    arguments["biases"] = [None, arguments["biases"][1], None]
    arguments["weights"] = [weight.float().requires_grad_() for weight in arguments["weights"]]
    with torch.no_grad():
        alone = p3kernels.mlp_moments(**arguments, backend="cuda")
    out = p3kernels.mlp_moments(**arguments, backend="cuda")
    twin = p3kernels.mlp_moments(**arguments, backend="reference")
    gradients = [torch.autograd.grad(o[0].sum() + o[1].sum(), arguments["weights"]) for o in (out, twin)]
    for got, expected in (*zip(alone, twin, strict=True), *zip(out, twin, strict=True), *zip(*gradients, strict=True)):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)  # float32 against float64, summed over rows


def test_nan_stays_in_its_row():
    arguments = actor(21, (6, 9, 8, 3), 4)
    arguments["mean"][7, 2] = float("nan")
    for out in p3kernels.mlp_moments(**arguments, backend="cuda"):
        assert out.isnan().any(1).nonzero().tolist() == [[7]]


def test_large_batches_go_layer_by_layer(monkeypatch, count_launches):
    arguments = actor(9, (6, 9, 8, 3), 4)
    alone = p3kernels.mlp_moments(**arguments, backend="cuda")
    monkeypatch.setattr(one_launch, "ONE_LAUNCH_ROWS", 8)
    layers = []
    assert count_launches(lambda: layers.extend(p3kernels.mlp_moments(**arguments, backend="cuda"))) == 2
    for got, expected in zip(alone, layers, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)  # sums in another order


@pytest.mark.parametrize(
    ("rows", "shared_kib", "tile"),
    [(1057, 227, 16), (1056, 227, 8), (4096, 163, 16), (4096, 99, 8), (4096, 48, 0)],
    ids=["sm_90", "sm_90, few rows", "sm_80", "sm_120", "too small"],
)
def test_tiles_of_the_g1_actor(shim, rows, shared_kib, tile):
    assert shim.moments_tile(list(ACTOR), rows, 132, shared_kib * 1024)[0] == tile


def test_two_blocks_of_the_g1_actor_fit_on_a_hopper(shim):
    tile, shared_bytes = shim.moments_tile(list(ACTOR), 4096, 132, 227 * 1024)
    assert tile == 16
    assert 2 * (shared_bytes + 1024) <= 228 * 1024  # 1 KiB a block is the system's
