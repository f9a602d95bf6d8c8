from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from helpers import layered
from helpers.battery import grouped, run
from helpers.device_battery import launches  # noqa: F401  # a fixture
from helpers.device_cases import MlpMomentsCases
from torch.utils._python_dispatch import TorchDispatchMode

import p3kernels
from p3kernels.activations import ELU
from triton_kernels import launch, mlp_moments
from triton_kernels.linear_weight_gradients import split_count


class TestMlpMoments(MlpMomentsCases):
    @pytest.mark.parametrize(("activation", "parameter"), [("relu", None), ("leaky_relu", 0.2)])
    def test_other_activations(self, activation, parameter):
        self.options = {"activation": activation, "activation_parameter": parameter}
        self.assert_true_to_reference(self.make_inputs(self.sizes["prime"], torch.float32), "prime")

    @pytest.mark.parametrize("size", [(9, 5, 0, 4, 3), (9, 5, 5, 4, 3), (9, 5, 2, 3)])
    def test_all_some_or_no_inputs_stochastic(self, size):
        inputs = self.make_inputs(size, torch.float32)
        exact, exact_gradients = run(self.twin, {name: tensor.double() for name, tensor in inputs.items()})
        outputs, gradients = run(self.call, inputs)
        for index, out in enumerate(outputs):
            self.assert_near(f"output {index}", out, exact[index])
        for name, gradient in gradients.items():
            self.assert_near(f"gradient of {name}", gradient, exact_gradients[name])

    def test_deep_network(self):
        """More layers than one launch takes."""
        self.assert_true_to_reference(
            self.make_inputs((5, 4, 3, *[6, 5] * 5), torch.float32),
            "odd",
        )


def network(rows: int, widths: tuple[int, ...], stochastic: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(8)
    named = layered.moments(generator, rows, widths[0], stochastic)
    return grouped(layered.cast({**named, **layered.layers(generator, widths)}, torch.float32))


def tensors_of(arguments: dict[str, Any]) -> list[torch.Tensor]:
    return [arguments["mean"], arguments["var"], *arguments["weights"], *arguments["biases"]]


class OnlyAllocations(TorchDispatchMode):
    """Nothing but kernels may run on the device: every other torch function in a pass would be a launch of its own."""

    allowed = ("empty", "view", "detach", "slice", "p3kernels", "alias", "aten.t.")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        poison = func is torch.ops.aten.fill_.Scalar and math.isnan(args[1])  # by the tests themselves
        assert poison or any(name in str(func) for name in self.allowed), func
        return func(*args, **(kwargs or {}))


def test_launches_of_the_actor(launches):  # noqa: F811
    """Four layers, all gradients: 12 launches, two of which pack; for a rollout one."""
    arguments = network(3, (7, 6, 5, 4, 3), 4)
    for tensor in tensors_of(arguments):
        tensor.requires_grad_()
    mlp_moments.forward(*arguments.values(), ELU, 1.0, False, False)
    assert launches == ["_mlp_moments_fwd_kernel"]
    launches.clear()
    out_mean, out_var = p3kernels.mlp_moments(**arguments, backend="triton")
    torch.autograd.grad((out_mean, out_var), tensors_of(arguments), (torch.ones(3, 3), torch.ones(3, 3)))
    assert len(launches) == 12
    assert launches[:5] == ["_pack_kernel", *["_linear_elu_moments_fwd_kernel"] * 4]


def test_nothing_runs_beside_the_kernels(monkeypatch):
    from triton.runtime import interpreter

    arguments = network(3, (7, 6, 5, 4, 3), 4)
    d_out = torch.ones(3, 3), torch.ones(3, 3)
    original = interpreter.GridExecutor.__call__

    def outside_of_the_mode(self, *args, **kwargs):
        with torch.utils._python_dispatch._disable_current_modes():
            return original(self, *args, **kwargs)

    monkeypatch.setattr(interpreter.GridExecutor, "__call__", outside_of_the_mode)
    with OnlyAllocations():
        *_, saved = mlp_moments.forward(*arguments.values(), ELU, 1.0, False, True)
        mlp_moments.backward(*d_out, *arguments.values(), saved, ELU, 1.0, False, (True, True), True)


@pytest.mark.parametrize(("precision", "size"), [("ieee", 1872 + 4 * 11 * (6 + 5)), ("bf16", 936 + 66 + 56 + 242)])
def test_what_is_saved(precision, size):
    """Padded weights, transposes and inputs; then activations and states: in bf16 half of all but the states."""
    arguments = network(11, (7, 6, 5, 3), 4)
    saved = mlp_moments.forward(*arguments.values(), ELU, 1.0, False, True, precision)[2]
    assert saved.numel() == size
    if precision == "ieee":
        assert saved.isfinite().all()  # memory is poisoned in tests: no place is left unwritten
    assert mlp_moments.forward(*arguments.values(), ELU, 1.0, False, False, precision)[2].numel() == 0


@pytest.mark.parametrize("stochastic", [0, 20, 43])
def test_rollout_in_one_launch_is_layer_by_layer(stochastic, monkeypatch, launches):  # noqa: F811
    arguments = network(45, (43, 70, 33, 5), stochastic)
    arguments["biases"][1] = torch.empty(0)
    alone = mlp_moments.forward(*arguments.values(), ELU, 1.0, False, False)[:2]
    assert len(launches) == 1
    monkeypatch.setattr(mlp_moments, "SCRATCH_BYTES", 0)
    layers = mlp_moments.forward(*arguments.values(), ELU, 1.0, False, False)[:2]
    assert len(launches) == 1 + 4  # one packs
    for got, expected in zip(alone, layers, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)  # other blocks, other roundings


def test_missing_biases():
    arguments = network(9, (6, 5, 4, 3), 4)
    arguments["biases"] = [arguments["biases"][0], None, None]
    outputs = [[], []]
    for found, name in zip(outputs, ("triton", "reference"), strict=True):
        leaves = [tensor.requires_grad_() for tensor in tensors_of(arguments) if tensor is not None]
        out = p3kernels.mlp_moments(**arguments, backend=name)
        found.extend([*out, *torch.autograd.grad(out[0].sum() + out[1].sum(), leaves)])
    for got, expected in zip(*outputs, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)  # float32 against float64, summed over rows


def test_extreme_inputs_stay_finite():
    layered.assert_extreme_moments_are_finite("triton")


def rounded_layer(mean, var, weight, bias):
    """A linear layer with operands rounded to bfloat16, the weight before it is squared as well, exact otherwise."""

    def low(tensor):
        return tensor.bfloat16().double()

    first = weight.shape[1] - var.shape[1]
    return low(mean) @ low(weight).t() + bias, low(var) @ low(low(weight[:, first:]).square().float()).t()


def test_bf16_rounds_the_operands_and_nothing_else():
    arguments = network(33, (20, 18), 12)
    weight, bias = arguments["weights"][0], arguments["biases"][0]
    got = p3kernels.mlp_moments(**arguments, precision="bf16", backend="triton")
    expected = rounded_layer(arguments["mean"], arguments["var"], weight, bias.double())
    full = p3kernels.mlp_moments(**arguments, backend="triton")
    for index in range(2):
        torch.testing.assert_close(got[index].double(), expected[index], rtol=1e-6, atol=1e-6)  # sums in float32
        assert not torch.equal(got[index], full[index])


@pytest.mark.parametrize(
    ("setting", "precision"), [("highest", "ieee"), ("high", "tf32"), ("medium", "bf16"), (None, "tf32x3")]
)
def test_precision_follows_torch_unless_given(setting, precision, monkeypatch):
    arguments = network(5, (6, 5, 3), 4)
    found = []
    original = mlp_moments.forward
    monkeypatch.setattr(mlp_moments, "forward", lambda **named: found.append(named["precision"]) or original(**named))
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision(setting or "highest")
        p3kernels.mlp_moments(**arguments, precision=None if setting else precision, backend="triton")
    finally:
        torch.set_float32_matmul_precision(before)
    assert found == [precision]


@pytest.mark.parametrize("rows", [1, 64, 4096, 24576])
@pytest.mark.parametrize("tiles", [1, 5, 38, 74, 300])
def test_parts_of_the_batch(rows, tiles):
    splits = split_count(rows, tiles, 32)
    assert 1 <= splits <= max(1, rows // 32)
    busy = [tiles * parts / (132 * -(-tiles * parts // 132)) for parts in range(1, min(16, max(1, rows // 32)) + 1)]
    assert busy[splits - 1] >= max(busy) / 1.06


def test_tuning_keys_do_not_hold_the_batch_length(monkeypatch):
    keys = []

    def tuned(kernel, key, default):
        keys.append((kernel, key))
        return default

    monkeypatch.setattr(launch, "tuned", tuned)
    for rows in (33, 64):
        arguments = network(rows, (6, 5, 3), 4)
        *_, saved = mlp_moments.forward(*arguments.values(), ELU, 1.0, False, True)
        d_out = torch.ones(rows, 3), torch.ones(rows, 3)
        mlp_moments.backward(*d_out, *arguments.values(), saved, ELU, 1.0, False, (True, True), True)
    assert keys
    assert keys[: len(keys) // 2] == keys[len(keys) // 2 :]
