from __future__ import annotations

import pytest
import torch
from helpers import layered
from helpers.battery import grouped, run
from helpers.device_cases import MlpMixtureLogProbCases
from helpers.numbered_rows import likelihood_on as on
from helpers.numbered_rows import without_noise

import p3kernels
from p3kernels.activations import ELU, Activation
from p3kernels.cuda import native, one_launch
from p3kernels.ops import mlp_mixture_log_prob as op
from p3kernels.reference.latent_noise import SAMPLING, latent_noise


class TestMlpMixtureLogProb(MlpMixtureLogProbCases):
    backend = "cuda"
    layout_invariant = False

    def test_std_of_each_row(self):
        self.assert_true_to_reference(layered.policy(self.sizes["prime"], torch.float32, row_std=True), "prime")

    def test_gradients_only_where_asked(self):
        inputs = self.make_inputs(self.sizes["odd"], torch.float32)
        _, everything = run(self.call, inputs)
        for name in ("latent_std", "weights.1", "noise"):
            _, gradients = run(self.call, inputs, [name])
            assert [other for other, gradient in gradients.items() if gradient is not None] == [name]
            assert torch.equal(gradients[name], everything[name])


BATTERY = TestMlpMixtureLogProb()


@pytest.mark.parametrize(("context", "latent"), [(0, 5), (4, 0)])
def test_without_context_or_latent(context, latent):
    inputs = layered.policy((6, 9, context, latent, 7, 3), torch.float32)
    exact, exact_gradients = run(BATTERY.twin, layered.cast(inputs, torch.float64))
    outputs, gradients = run(BATTERY.call, inputs)
    BATTERY.assert_near("log_prob", outputs[0], exact[0])
    for name, gradient in gradients.items():
        BATTERY.assert_near(f"gradient of {name}", gradient, exact_gradients[name])


@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize("rows", [4, 4096], ids=["layered", "one launch"])
def test_backends_draw_the_same(sampling, rows, monkeypatch):
    """In the values, drawn in one launch or not, and in every gradient, drawn anew by the backward pass."""
    monkeypatch.setattr(one_launch, "ONE_LAUNCH_ROWS", rows)
    inputs = without_noise((7, 9, 3, 29, 11, 4))
    got, expected = (run(on(name, 7, seed=2**62 + 5, sampling=sampling), inputs) for name in ("cuda", "reference"))
    BATTERY.assert_same(got, expected, bitwise=False)


def test_tiles_of_any_size(monkeypatch):
    monkeypatch.setattr(op, "CUDA_TILE_ROWS", 11)
    monkeypatch.setattr(one_launch, "ONE_LAUNCH_ROWS", 0)
    BATTERY.assert_true_to_reference(BATTERY.make_inputs(BATTERY.sizes["prime"], torch.float32), "prime")


@pytest.mark.parametrize("samples", [1, 15])
def test_the_likelihood_is_one_launch(samples, count_launches):
    inputs = grouped(without_noise((samples, 9, 3, 29, 11, 4)))
    call = lambda: p3kernels.mlp_mixture_log_prob(**inputs, num_samples=samples, seed=3, backend="cuda")  # noqa: E731
    assert count_launches(call) == 1


@pytest.mark.parametrize("shape", [(3, 7, 1), (2, 5, 29), (1, 3, 110)])
def test_noise_is_the_references(shape):
    out = torch.empty(shape)
    native.normal(torch.tensor([2**40 + 7]), 0, 0, 0, out)
    torch.testing.assert_close(out, latent_noise(2**40 + 7, *shape), rtol=2e-6, atol=2e-7)  # a few roundings


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_actions_of_a_rollout_step_are_one_launch(sampled, dtype, count_launches):
    """The deterministic actor, and one at a latent drawn from a seed."""
    inputs = without_noise((2, 19, 13, 11, 17, 7, 3))
    named = grouped({name: tensor.to(dtype) for name, tensor in inputs.items()})
    network = native.Network(named["weights"], named["biases"], Activation(ELU, 1.0))
    means = torch.empty(2, 19, 3)
    latent_std = named["latent_std"] if sampled else None
    inputs_of_actor = (named["context"], named["latent_mean"], latent_std, None)
    launch = lambda: native.mlp_actions(network, *inputs_of_actor, torch.tensor([5]), 2, False, means)  # noqa: E731
    assert count_launches(launch) == 1
    noise = latent_noise(5, 2, 19, 11, dtype=torch.float64) if sampled else torch.zeros(2, 19, 11, dtype=torch.float64)
    z = named["latent_mean"].double() + named["latent_std"].double() * noise
    x = torch.cat([named["context"].double().expand(2, -1, -1), z], -1)
    for index, (weight, bias) in enumerate(zip(named["weights"], named["biases"], strict=True)):
        x = x @ weight.double().t() + bias.double()
        x = torch.nn.functional.elu(x) if index < len(named["weights"]) - 1 else x
    torch.testing.assert_close(means.double(), x, rtol=1e-5, atol=1e-5)  # sums and noise in float32
    assert (means[0] == means[1]).all() != sampled
