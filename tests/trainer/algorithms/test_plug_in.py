"""rsl_rl's config as a user writes it: what is missing, what is misspelt; robots without a scan."""

from __future__ import annotations

import copy

import pytest
import torch
from helpers.trainer.synthetic import TurningEnv, config, weights
from rsl_rl.runners import OnPolicyRunner
from tensordict import TensorDict

from trainer.algorithms import P3PPO


class BlindEnv(TurningEnv):
    """Without a scan, and without the true velocity."""

    def get_observations(self) -> TensorDict:
        return super().get_observations().exclude("extero", "velocity")


def blind_config(method, **settings):
    given = config(method, **settings)
    given["obs_groups"]["actor"] = ["proprio", "history"]
    del given["actor"]["scan_shape"]
    if "trainer.models" in given["actor"]["class_name"] or method == "ae":
        given["actor"]["velocity_group"] = None
    return given


def construct(env, given):
    return P3PPO.construct_algorithm(env.get_observations(), env, given, "cpu")


def test_no_random_network_distillation_needs_no_mention():
    """rsl_rl up to 5.4 asks the user's config for this key after the algorithm is made."""
    given = config()
    del given["algorithm"]["rnd_cfg"]
    OnPolicyRunner(TurningEnv(), given, log_dir=None).learn(1)
    assert given["algorithm"]["rnd_cfg"] is None


@pytest.mark.parametrize("part", ["algorithm", "actor", "critic", "obs_groups", "num_steps_per_env"])
def test_missing_part(part):
    given = config()
    del given[part]
    with pytest.raises(ValueError, match=rf"^config: expected .*, missing {part}; examples/rsl_rl/p3.yaml"):
        construct(TurningEnv(), given)


@pytest.mark.parametrize(
    ("part", "settings", "message"),
    [
        ("actor", {"hiden_dims": [3]}, r"actor: P3Actor has no setting 'hiden_dims' \(did you mean 'hidden_dims'\?\)"),
        ("actor", {"distribution_cfg": {}}, r"actor: P3Actor has no setting 'distribution_cfg'.*; it has beta, "),
        ("algorithm", {"gama": 0.9}, r"algorithm: P3PPO has no setting 'gama' \(did you mean 'gamma'\?\)"),
        ("algorithm", {"share_cnn_encoders": True}, "algorithm: share_cnn_encoders is not supported by P3PPO"),
        ("algorithm", {"use_mixed_precision": True}, "algorithm: use_mixed_precision is not supported by P3PPO"),
    ],
)
def test_settings_that_nobody_would_read(part, settings, message):
    given = config()
    given[part] |= settings
    with pytest.raises(ValueError, match=message):
        construct(TurningEnv(), given)


def test_settings_of_rsl_rl_that_are_off_are_no_obstacle():
    construct(TurningEnv(), config(share_cnn_encoders=False))


def test_no_class_name():
    given = config()
    del given["critic"]["class_name"]
    with pytest.raises(ValueError, match="critic: expected a class_name, got 'hidden_dims'"):
        construct(TurningEnv(), given)


def test_a_group_that_nobody_would_read():
    given = config()
    given["obs_groups"]["actor"].append("critic")
    with pytest.raises(ValueError, match=r"obs_groups\['actor'\]: P3Actor reads .* and nothing of \['critic'\]"):
        construct(TurningEnv(), given)


def test_no_velocity_says_what_to_do():
    with pytest.raises(ValueError, match="expected the group 'velocity' with the true velocity; name another"):
        construct(BlindEnv(), blind_config("mm") | {"actor": config()["actor"]})


@pytest.mark.parametrize("method", ["mm", "p3(2)", "cm", "shared", "ae", "spr", "simple-actor-critic"])
def test_without_scan_and_velocity(method, tmp_path):
    """Every method trains, saves, loads and is exported; what it has of a scan has no columns."""
    given = blind_config(method)
    if method == "p3(2)":
        given["algorithm"]["switch_at"] = 1
    runner = OnPolicyRunner(BlindEnv(), copy.deepcopy(given), log_dir=None)
    before = weights(runner.alg)
    runner.learn(2)
    after = weights(runner.alg)
    assert all(value.isfinite().all() for value in after.values())
    still = [name for name, value in after.items() if torch.equal(value, before[name]) and "target_encoder" not in name]
    assert not still
    assert not any(".scan" in name or "scan_head" in name for name in after)
    runner.save(str(tmp_path / "model.pt"))
    other = OnPolicyRunner(BlindEnv(), given, log_dir=None)
    other.load(str(tmp_path / "model.pt"))
    observations = BlindEnv().get_observations()
    expected = runner.get_inference_policy()(observations)
    assert torch.equal(other.get_inference_policy()(observations), expected)
    runner.export_policy_to_jit(str(tmp_path))
    names = runner.alg.actor.as_jit().input_names
    assert names == (["proprio"] if method in ("spr", "simple-actor-critic") else ["proprio", "history"])
    got = torch.jit.load(tmp_path / "policy.pt")(*(observations[name] for name in names))
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)


def test_scan_without_velocity():
    given = config()
    given["actor"]["velocity_group"] = None
    algorithm = construct(TurningEnv(), given)
    assert algorithm.actor.encoder.velocity_size == 0
    assert algorithm.actor.as_jit().input_names == ["proprio", "history", "extero"]


@pytest.mark.parametrize("shape", [(5,), (5, 7, 1), (0, 35), (5, -7)])
def test_scan_shape(shape):
    given = config()
    given["actor"]["scan_shape"] = list(shape)
    with pytest.raises(ValueError, match="scan_shape: expected rows and columns of the group 'extero', got"):
        construct(TurningEnv(), given)
