"""The paper's network table, the layer that convolves by a matrix, the latent, observations and settings."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from helpers.trainer.synthetic import (
    ACTIONS,
    FRAMES,
    GROUPS,
    PROPRIO,
    SCAN_SHAPE,
    SIZES,
    make_actor,
    observations,
)
from tensordict import TensorDict
from torch import Tensor, nn
from torch.distributions import Independent, Normal, kl_divergence

from trainer.algorithms.presets import resolve
from trainer.algorithms.rsl_rl_config import rsl_rl_config
from trainer.config import TrainConfig
from trainer.models import P3Actor
from trainer.models.actor import gaussian_kl
from trainer.models.networks import Decoder, Encoder, Latent, _GridLayer


def widths(network: nn.Module) -> list[tuple[int, int]]:
    return [(layer.in_features, layer.out_features) for layer in network.modules() if isinstance(layer, nn.Linear)]


def count(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def dense(*sizes: int) -> int:
    """Parameters of linear layers of these widths."""
    return sum(inputs * outputs + outputs for inputs, outputs in itertools.pairwise(sizes))


@pytest.fixture(scope="module")
def paper_actor() -> P3Actor:
    """The G1's: 96 proprioceptive values, 5 frames, a scan of 11 × 17, 29 actions."""
    sizes = {"proprio": 96, "history": 480, "extero": 187, "velocity": 3}
    obs = TensorDict({name: torch.zeros(2, size) for name, size in sizes.items()}, batch_size=[2])
    return P3Actor(obs, GROUPS, "actor", 29)


class TestThePapersTable:
    def test_history_encoder(self, paper_actor):
        assert widths(paper_actor.encoder.history) == [(480, 256), (256, 256)]
        assert widths(paper_actor.encoder.history_head) == [(256, 10 + 10 + 3)]

    def test_scan_encoder(self, paper_actor):
        layers = [layer for layer in paper_actor.encoder.scan.modules() if isinstance(layer, nn.Conv2d)]
        assert [(layer.in_channels, layer.out_channels) for layer in layers] == [(1, 4), (4, 8)]
        assert all(layer.kernel_size == (3, 3) and layer.stride == (2, 2) for layer in layers)
        # 11 × 17 → 6 × 9 → 3 × 5
        assert widths(paper_actor.encoder.scan) == [(8 * 3 * 5, 128)]
        assert widths(paper_actor.encoder.scan_head) == [(128, 100 + 100)]

    def test_decoder(self, paper_actor):
        assert widths(paper_actor.decoder.proprio) == [(10 + 3 + 29, 256), (256, 256), (256, 96)]
        assert widths(paper_actor.decoder.scan) == [(100, 128), (128, 8 * 3 * 5)]
        layers = [layer for layer in paper_actor.decoder.scan.modules() if isinstance(layer, nn.ConvTranspose2d)]
        assert [(layer.in_channels, layer.out_channels) for layer in layers] == [(8, 4), (4, 1)]
        assert all(layer.kernel_size == (3, 3) and layer.stride == (2, 2) for layer in layers)

    def test_policy_network(self, paper_actor):
        assert widths(paper_actor.mlp) == [(96 + 3 + 110, 512), (512, 256), (256, 128), (128, 29)]

    def test_activations_are_elu(self, paper_actor):
        parts = (
            paper_actor.encoder.history,
            paper_actor.encoder.scan,
            paper_actor.decoder.proprio,
            paper_actor.decoder.scan,
            paper_actor.mlp,
        )
        counts = [sum(isinstance(layer, nn.ELU) for layer in part.modules()) for part in parts]
        assert counts == [2, 3, 2, 3, 3]

    def test_parameters(self, paper_actor):
        encoder = dense(480, 256, 256, 23) + (4 * 9 + 4) + (8 * 4 * 9 + 8) + dense(120, 128, 200)
        decoder = dense(42, 256, 256, 96) + dense(100, 128, 120) + (8 * 4 * 9 + 4) + (4 * 9 + 1)
        assert count(paper_actor.encoder) == encoder
        assert count(paper_actor.decoder) == decoder
        assert count(paper_actor) == encoder + decoder + dense(209, 512, 256, 128, 29) + 29

    def test_config(self):
        made = rsl_rl_config(resolve(TrainConfig(preset="paper")))
        assert list(made["critic"]["hidden_dims"]) == list(made["actor"]["hidden_dims"]) == [512, 256, 128]
        assert not {"proprio_latent", "extero_latent"} & made["actor"].keys()  # the networks have defaults
        assert made["actor"]["init_std"] == 1.0
        assert made["actor"]["beta"] == 0.1

    def test_latent_sizes(self, paper_actor):
        assert (paper_actor.encoder.proprio_latent, paper_actor.encoder.extero_latent) == (10, 100)


def grid_layers(shape: tuple[int, int]) -> list[_GridLayer]:
    networks = (Encoder(6, shape), Decoder(2, 1, shape))
    return [layer.double() for network in networks for layer in network.modules() if isinstance(layer, _GridLayer)]


class TestGridLayer:
    """Float64, sums of at most 72 products: 1e-12."""

    @pytest.mark.parametrize("index", range(4))
    @pytest.mark.parametrize("beyond", [-10_000, 0, 1, 60])
    def test_is_the_convolution(self, index, beyond):
        """With a batch of one, just at, just above and well above the size from which the matrix is used."""
        layer = grid_layers((11, 17))[index]
        size = math.prod(layer.shape)
        images = torch.randn(max(1, size + beyond), size).double().requires_grad_()
        tensors = (images, layer.convolution.weight, layer.convolution.bias)
        expected = layer.convolution(images.view(-1, *layer.shape)).flatten(1)
        weight = torch.randn_like(expected)
        wanted = torch.autograd.grad((weight * expected).sum(), tensors)
        got = layer(images)
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)
        for gradient, reference in zip(torch.autograd.grad((weight * got).sum(), tensors), wanted, strict=True):
            assert reference.count_nonzero() > 0
            # A bias gathers every pixel of every image: up to 60,000 terms.
            torch.testing.assert_close(gradient, reference, rtol=1e-11, atol=1e-11)

    @pytest.mark.parametrize("index", range(4))
    def test_a_large_batch_is_not_convolved(self, index):
        layer = grid_layers((5, 7))[index]
        size, batches = math.prod(layer.shape), []
        layer.convolution.register_forward_pre_hook(lambda _, inputs: batches.append(len(inputs[0])))
        for rows in (size, size + 1, 10 * size):
            layer(torch.randn(rows, size).double())
        assert batches == [size, size + 1, size + 1]

    @pytest.mark.parametrize("rows", [0, 1, 40, 300])
    @pytest.mark.parametrize("shape", [(11, 17), (5, 7), (8, 6), (4, 4), (1, 3), (2, 1)])
    def test_shapes(self, shape, rows):
        encoder, decoder = Encoder(6, shape, 3, 5), Decoder(2, 4, shape, 3, 5)
        size = shape[0] * shape[1]
        latent = encoder(torch.randn(rows, 6), torch.randn(rows, size))
        assert latent.mean.shape == latent.std.shape == (rows, 8)
        assert latent.velocity.shape == (rows, 3)
        proprio, scan = decoder(latent.mean, latent.velocity, torch.randn(rows, 4))
        assert proprio.shape == (rows, 2)
        assert scan.shape == (rows, size)


def test_a_latents_kl_is_that_of_torch():
    latent = Latent(torch.randn(7, 5).double(), torch.rand(7, 5).double() + 0.05, torch.zeros(7, 3))
    expected = kl_divergence(Normal(latent.mean, latent.std), Normal(0.0, 1.0))
    torch.testing.assert_close(latent.kl_to_prior(), expected, rtol=1e-12, atol=1e-14)


def test_gaussian_kl_is_that_of_torch():
    means, stds = torch.randn(2, 7, 5).double(), torch.rand(2, 7, 5).double() + 0.05
    old, new = (Independent(Normal(mean, std), 1) for mean, std in zip(means, stds, strict=True))
    got = gaussian_kl(means[0], stds[0], means[1], stds[1])
    torch.testing.assert_close(got, kl_divergence(old, new), rtol=1e-12, atol=1e-14)
    assert (gaussian_kl(means[1], stds[1], means[0], stds[0]) != got).all()
    actor = make_actor()
    assert torch.equal(actor.get_kl_divergence((means[0], stds[0]), (means[1], stds[1])), got)
    with pytest.raises(ValueError, match=r"no closed-form KL"):
        actor.get_kl_divergence((), ())


class TestHeads:
    """A head's rows: means, log-variances, and for the history the velocity. Each moves its own output, no other."""

    @pytest.mark.parametrize(
        ("head", "first", "last", "moved"),
        [
            ("history_head", 0, 3, ("mean", slice(0, 3))),
            ("history_head", 3, 6, ("std", slice(0, 3))),
            ("history_head", 6, 9, ("velocity", slice(0, 3))),
            ("scan_head", 0, 5, ("mean", slice(3, 8))),
            ("scan_head", 5, 10, ("std", slice(3, 8))),
        ],
    )
    def test_rows(self, head, first, last, moved):
        encoder = Encoder(SIZES["history"], SCAN_SHAPE, 3, 5)
        inputs = torch.randn(4, SIZES["history"]), torch.randn(4, SIZES["extero"])
        before = encoder(*inputs)
        with torch.no_grad():
            getattr(encoder, head).weight[first:last] += 0.3
        after = encoder(*inputs)
        for name in ("mean", "std", "velocity"):
            changed = getattr(after, name) != getattr(before, name)
            expected = torch.zeros_like(changed)
            if name == moved[0]:
                expected[:, moved[1]] = True
            assert torch.equal(changed, expected), name

    def test_std_is_that_of_the_log_variance(self):
        encoder = Encoder(SIZES["history"], SCAN_SHAPE, 3, 5)
        for head in (encoder.history_head, encoder.scan_head):
            nn.init.zeros_(head.weight)
        with torch.no_grad():
            encoder.history_head.bias.copy_(torch.arange(9.0) / 10)
            encoder.scan_head.bias.copy_(-torch.arange(10.0) / 10)
        latent = encoder(torch.randn(1, SIZES["history"]), torch.randn(1, SIZES["extero"]))
        log_var = torch.tensor([0.3, 0.4, 0.5, -0.5, -0.6, -0.7, -0.8, -0.9])
        torch.testing.assert_close(latent.std[0], log_var.exp().sqrt(), rtol=1e-6, atol=0)
        torch.testing.assert_close(latent.mean[0], torch.tensor([0.0, 0.1, 0.2, 0.0, -0.1, -0.2, -0.3, -0.4]))
        torch.testing.assert_close(latent.velocity[0], torch.tensor([0.6, 0.7, 0.8]))

    def test_std_of_a_wild_step_is_finite(self):
        encoder = Encoder(SIZES["history"], SCAN_SHAPE, 3, 5)
        for scale in (1e4, -1e4):
            std = encoder(scale * torch.randn(50, SIZES["history"]), scale * torch.randn(50, SIZES["extero"])).std
            assert std.isfinite().all()
            assert (std > 0).all()


def test_gradients_reach_every_parameter_of_encoder_and_decoder():
    actor, obs = make_actor(), observations(6)
    _, latent = actor.encode(obs)
    noise = torch.randn_like(latent.mean)
    proprio, scan = actor.decoder(latent.mean + latent.std * noise, latent.velocity, torch.randn(6, ACTIONS))
    (proprio.square().sum() + scan.square().sum()).backward()
    for name, parameter in [*actor.encoder.named_parameters(), *actor.decoder.named_parameters()]:
        assert parameter.grad is not None, name
        assert parameter.grad.count_nonzero() > 0, name


def test_the_decoder_sees_the_action_and_each_latent_its_own_part():
    decoder = Decoder(PROPRIO, ACTIONS, SCAN_SHAPE, 3, 5)
    latent, velocity, action = torch.randn(1, 8), torch.randn(1, 3), torch.randn(1, ACTIONS)

    def moved(*changed: Tensor) -> tuple[bool, bool]:
        before, after = decoder(latent, velocity, action), decoder(*changed)
        return not torch.equal(before[0], after[0]), not torch.equal(before[1], after[1])

    columns = torch.arange(8)
    assert moved(latent + (columns < 3), velocity, action) == (True, False)
    assert moved(latent + (columns >= 3), velocity, action) == (False, True)
    assert moved(latent, velocity + 1, action) == (True, False)
    assert moved(latent, velocity, action + 1) == (True, False)


@pytest.mark.parametrize("log_std", [-80.0, -5.0, 0.0, 5.0, 80.0])
def test_action_std_is_positive(log_std):
    actor = make_actor()
    nn.init.constant_(actor.log_std, log_std)
    assert actor.action_std.shape == (ACTIONS,)
    assert actor.action_std.isfinite().all()
    assert (actor.action_std > 0).all()


def test_init_std():
    torch.testing.assert_close(make_actor(init_std=0.6).action_std, torch.full((ACTIONS,), 0.6))


class TestObservations:
    def test_history_is_normalised_frame_by_frame(self):
        """With the statistics of the proprioception, which are those of the first 50 observations."""
        seen = observations(50)
        actor, obs = make_actor(seen), observations(5)
        mean, std = seen["proprio"].mean(0), seen["proprio"].std(0, unbiased=False)
        eps = actor.proprio_normalizer.eps

        def normalised(values: Tensor) -> Tensor:
            return (values - mean) / (std + eps)

        proprio, history, scan = actor.normalised(obs).values()
        # The statistics accumulate in float32 over 50 rows.
        tolerance = {"rtol": 1e-5, "atol": 1e-5}
        torch.testing.assert_close(proprio, normalised(obs["proprio"]), **tolerance)
        frames = [normalised(frame) for frame in obs["history"].split(PROPRIO, -1)]
        assert len(frames) == FRAMES
        torch.testing.assert_close(history, torch.cat(frames, -1), **tolerance)
        expected = (obs["extero"] - seen["extero"].mean(0)) / (seen["extero"].std(0, unbiased=False) + eps)
        torch.testing.assert_close(scan, expected, **tolerance)
        assert (history - obs["history"]).abs().max() > 0.1

    def test_calls_do_not_move_the_statistics(self):
        actor, obs = make_actor(), observations(5)
        before = {name: value.clone() for name, value in actor.named_buffers()}
        assert len(before) == 8
        actor(obs), actor(obs, stochastic_output=True), actor.policy(obs), actor.act_at_sample(obs)
        for name, value in actor.named_buffers():
            assert torch.equal(value, before[name]), name

    def test_without_normalisation(self):
        actor, obs = make_actor(obs_normalization=False), observations(5)
        assert all(map(torch.equal, actor.normalised(obs).values(), (obs["proprio"], obs["history"], obs["extero"])))

    def test_groups_by_name(self):
        obs = observations(5).rename_key_("proprio", "body").rename_key_("extero", "scan")
        groups = {"actor": ["scan", "history", "body"]}
        settings = {"scan_shape": SCAN_SHAPE, "obs_normalization": False, "groups": ("body", "history", "scan")}
        actor = P3Actor(obs, groups, "actor", ACTIONS, **settings)
        assert all(map(torch.equal, actor.normalised(obs).values(), (obs["body"], obs["history"], obs["scan"])))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"scan_shape": (5, 8)}, r"scan_shape: \(5, 8\) has 40 points, the group 'extero' 35"),
        ({"init_std": 0.0}, r"init_std: expected a positive number, got 0\.0"),
        ({"init_std": -1.0}, r"init_std: expected a positive number, got -1\.0"),
        ({"init_std": math.nan}, r"init_std: expected a positive number, got nan"),
        (
            {"groups": ("proprio", "past", "extero")},
            r"obs_groups\['actor'\]: expected the groups .* missing \['past'\]",
        ),
    ],
)
def test_bad_settings(changed, message):
    with pytest.raises(ValueError, match=message):
        make_actor(**changed)


def test_history_of_no_whole_frames():
    obs = observations(5)
    obs["history"] = torch.zeros(5, 2 * PROPRIO + 1)
    with pytest.raises(ValueError, match=r"history: expected a multiple of the proprioception's 12 columns, got 25"):
        make_actor(obs)
