"""Networks as one step of automatic differentiation: the numbers of their modules, and when it is not to be."""

from __future__ import annotations

import os

import pytest
import torch
from helpers import forked
from rsl_rl.models import MLPModel
from tensordict import TensorDict
from torch import nn

from trainer.models import dense
from trainer.models.networks import Decoder, Encoder, mlp


@pytest.fixture
def native():
    if not dense._has_kernels():
        pytest.skip("the native extension is not here")


def both(monkeypatch, network, loss):
    """Loss and gradients of all parameters, as one step and module by module."""
    found = []
    for kernels in (True, False):
        monkeypatch.setattr(dense, "_has_kernels", lambda kernels=kernels: kernels)
        network.zero_grad()
        value = loss()
        value.backward()
        found.append([value.detach(), *(parameter.grad.clone() for parameter in network.parameters())])
    return zip(*found, strict=True)


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("rows", [1, 7, 300])  # 300: module by module the convolutions are products too
def test_encoder_and_decoder_are_their_modules(monkeypatch, rows):
    """In float64, to 1e-12 of a tensor's scale: only the order of sums is another."""
    networks = nn.ModuleList([Encoder(40, (11, 17)), Decoder(8, 5, (11, 17))]).double()
    encoder, decoder = networks
    history, scan = torch.randn(rows, 40).double(), torch.randn(rows, 187).double()
    action, noise = torch.randn(rows, 5).double(), torch.randn(rows, 110).double()

    def loss():
        latent = encoder(history, scan)
        proprio, image = decoder(latent.mean + latent.std * noise, latent.velocity, action)
        return proprio.square().mean() + image.square().mean() + latent.kl_to_prior().mean()

    for ours, theirs in both(monkeypatch, networks, loss):
        assert theirs.abs().max() > 0
        assert (ours - theirs).abs().max() < 1e-12 * theirs.abs().max().clamp(min=1.0)


@pytest.mark.usefixtures("native")
def test_gradients_reach_the_input_and_an_activated_end(monkeypatch):
    network = nn.Sequential(*mlp([6, 9, 4]), nn.ELU()).double()
    x = torch.randn(5, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: dense.run(x, network), x)
    assert "_Dense" in type(dense.run(x, network).grad_fn).__name__
    for ours, theirs in both(monkeypatch, network, lambda: dense.run(x, network).square().sum()):
        assert torch.allclose(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("isa", ["plain", "avx2", "avx512"])
def test_convolutions_are_torchs_on_every_instruction_set(isa):
    """Forward and every gradient, float64 to 1e-12 of a tensor's scale, float32 to 1e-5: sums of many terms."""
    done = forked.python("-c", CONVOLUTIONS, env={**os.environ, "P3_CPU_ISA": isa})
    if "is not one this CPU" in done.stderr:
        pytest.skip(f"this CPU does not run {isa}")
    assert done.returncode == 0, done.stderr


CONVOLUTIONS = """
import torch
from torch import nn
from trainer.models import dense
from trainer.models.networks import Decoder, Encoder
torch.manual_seed(0)
for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
    for network, size in ((Encoder(6, (11, 17)).scan[:4], 187), (Decoder(2, 1, (11, 17)).scan[-3:], 120)):
        network = network.to(dtype)
        for rows in (1, 16, 45):
            x = torch.randn(rows, size, dtype=dtype, requires_grad=True)
            modules = [module.convolution if hasattr(module, "convolution") else module for module in network]
            shape = next(module for module in network if hasattr(module, "shape")).shape
            wanted = nn.Sequential(*modules)(x.view(rows, *shape)).flatten(1)
            got = dense.run(x, network)
            assert "_Dense" in type(got.grad_fn).__name__
            weight = torch.randn_like(wanted)
            tensors = (x, *network.parameters())
            theirs = torch.autograd.grad((weight * wanted).sum(), tensors)
            for a, b in zip((got, *torch.autograd.grad((weight * got).sum(), tensors)), (wanted, *theirs), strict=True):
                assert b.abs().max() > 0
                assert (a - b).abs().max() <= tolerance * b.abs().max().clamp(min=1.0), (dtype, rows, a.shape)
"""


@pytest.mark.usefixtures("native")
def test_convolutions_refuse_other_sizes_and_dtypes():
    """The kernels would read beyond the images, and float32 weights as float64."""
    scan = Encoder(6, (11, 17)).scan
    with pytest.raises(ValueError, match="expected 187 cells of an image, got 180"):
        dense.run(torch.randn(4, 180), scan)
    with pytest.raises(RuntimeError, match="type"):
        dense.run(torch.randn(4, 187).double(), scan)


@pytest.mark.usefixtures("native")
def test_an_incoming_gradient_is_left_alone():
    network = nn.Sequential(nn.Linear(3, 4), nn.ELU())
    incoming = torch.randn(2, 4)
    before = incoming.clone()
    dense.run(torch.randn(2, 3), network).backward(incoming)
    assert torch.equal(incoming, before)


@pytest.mark.parametrize(
    "network",
    [
        nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)),
        nn.Sequential(nn.Linear(3, 4), nn.ELU(alpha=0.5)),
        nn.Sequential(nn.Linear(3, 4, bias=False), nn.ELU()),
        nn.Sequential(nn.Linear(3, 4), nn.ELU(), nn.ELU()),
        nn.Sequential(nn.ELU(), nn.Linear(3, 4)),
    ],
)
def test_other_layers_go_module_by_module(network):
    x = torch.randn(2, 3)
    assert torch.equal(dense.run(x, network), network(x))


@pytest.mark.usefixtures("native")
def test_the_critic_is_rsl_rls():
    obs = TensorDict({"critic": torch.randn(30, 12)}, batch_size=[30])
    critic = MLPModel(obs, {"critic": ["critic"]}, "critic", 1, [16, 8], "elu", obs_normalization=True)
    critic.update_normalization(obs)
    ours = dense.value_of(critic, obs)
    assert "_Dense" in type(ours.grad_fn).__name__
    assert torch.allclose(ours, critic(obs), rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")  # a trace is for its own batch size, as here
def test_scripted_traced_and_exported_networks_are_their_modules():
    encoder = Encoder(40, (11, 17))
    inputs = torch.randn(3, 40), torch.randn(3, 187)
    expected = encoder(*inputs)
    for other in (
        torch.jit.script(encoder),
        torch.jit.trace(encoder, inputs),
        torch.export.export(encoder, inputs).module(),
    ):
        for ours, theirs in zip(other(*inputs), expected, strict=True):
            assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-5)
