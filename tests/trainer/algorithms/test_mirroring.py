"""Mirrored rows in P3PPO: what is in them, whose likelihoods, and runs with them."""

from __future__ import annotations

import io
import math
from collections import Counter
from dataclasses import replace

import pytest
import torch
from helpers.trainer.small_runs import SMALL_PPO, assert_same, small, whole_and_parts
from helpers.trainer.synthetic import (
    Flip,
    MirroredEnv,
    TurningEnv,
    adam_state,
    augmented,
    config,
    construct,
    flipped,
    rollout,
    same,
    statistics,
    trained,
    weights,
)
from rsl_rl.runners import OnPolicyRunner

from trainer.algorithms.losses import terms_of_policy
from trainer.algorithms.mirroring import Mirroring
from trainer.algorithms.presets import resolve
from trainer.config import PpoConfig, TrainConfig
from trainer.runs.checkpoint import load_checkpoint
from trainer.tasks import TASKS

SAMPLED = ("mc3", "vae", "vae-stored")
"""Draw new latents for every likelihood."""
RATIO_ONE = ("mm", "cm", "cm-diagonal", "shared", "mc3-common", "z-mean", "ae", "spr", "simple-actor-critic")
METHODS = (*RATIO_ONE, *SAMPLED)
ROWS = 8 * 16
"""Rows of a rollout."""


class TestSteps:
    @pytest.mark.parametrize("share", [1.0, 0.75, 0.5, 0.3, 0.1, 0.01])
    def test_every_step_has_its_turn(self, share):
        mirroring, count, updates = Mirroring(Flip(), share, "proprio"), 24, 1000
        turns = Counter()
        for iteration in range(updates):
            steps = mirroring.steps(iteration, count)
            assert len(set(steps)) == len(steps)
            assert abs(len(steps) - share * count) < 1
            turns.update(steps)
        assert sum(turns.values()) == round(share * count * updates)
        assert max(turns.values()) - min(turns.values()) <= 1

    def test_one_after_the_other(self):
        """The next step of an episode is the next of the mirrored ones, but where they wrap round."""
        mirroring = Mirroring(Flip(), 0.75, "proprio")
        assert mirroring.steps(0, 8) == [0, 1, 2, 3, 4, 5]
        assert mirroring.steps(1, 8) == [6, 7, 0, 1, 2, 3]
        assert Mirroring(Flip(), 1.0, "proprio").steps(7, 3) == [0, 1, 2]


@pytest.mark.parametrize("share", [1.0, 0.75])
@pytest.mark.parametrize("method", METHODS)
def test_rows_are_the_images(method, share):
    algorithm, _ = trained(method, mirror_share=share)
    torch.manual_seed(0)
    rows = algorithm._rollout()
    count = round(ROWS * share)
    assert len(rows["actions"]) == ROWS + count
    steps = [6, 7, 0, 1, 2, 3] if share < 1 else list(range(8))
    of = torch.cat([torch.arange(16) + 16 * step for step in steps])
    assert torch.equal(rows["actions"][ROWS:], flipped(rows["actions"][of]))
    images = Flip().observations(rows["observations"][of])
    for group in ("proprio", "history", "extero", "velocity", "critic"):
        if group in rows["observations"].keys():  # noqa: SIM118  a TensorDict iterates over rows
            assert torch.equal(rows["observations"][group][ROWS:], images[group]), group
    for name in ("returns", "advantages"):
        assert torch.equal(rows[name][ROWS:], rows[name][of]), name
    with torch.no_grad():
        torch.testing.assert_close(rows["values"][ROWS:], algorithm.critic(images).squeeze(-1))
    assert not torch.allclose(rows["values"][ROWS:], rows["values"][of])
    assert torch.equal(rows["drawn"], (torch.arange(ROWS + count) < ROWS).float())
    assert torch.equal(rows["acted_log_prob"][:ROWS], rows["log_prob"][:ROWS])
    assert torch.equal(rows["acted_log_prob"][ROWS:], rows["log_prob"][of])
    assert not torch.allclose(rows["log_prob"][ROWS:], rows["log_prob"][of])
    assert rows["continues"].sum() > 0
    # The last step of the rollout and that of the images have no next one.
    assert rows["continues"][ROWS - 16 : ROWS].sum() == rows["continues"][-16:].sum() == 0
    if share < 1:
        assert rows["continues"][ROWS + 16 : ROWS + 32].sum() == 0

    stored = algorithm.storage.observations.flatten(0, 1)[of]
    frames, scans = algorithm.actor.proprio_normalizer, algorithm.actor.scan_normalizer
    for name, expected in {
        "next_proprio": lambda: frames(flipped(stored["next_proprio"])),
        "next_valid": lambda: stored["next_valid"].squeeze(-1),
        "scan": lambda: scans(flipped(stored["extero"])),
        "velocity": lambda: flipped(stored["velocity"]),
        "frame": lambda: frames(flipped(stored["proprio"])),
    }.items():
        if name in rows:
            torch.testing.assert_close(rows[name][ROWS:], expected(), msg=name)
    assert {"scan"} <= rows.keys() or method == "simple-actor-critic"


@pytest.mark.parametrize("method", RATIO_ONE)
def test_likelihoods_begin_as_remembered(method, monkeypatch):
    """The update's own numbers at unchanged weights, of all rows in shuffled minibatches."""
    algorithm, _ = trained(method, mirror_share=1.0, schedule="fixed", learning_rate=0.0)
    recall, minibatches, found = algorithm.actor.recall, algorithm._minibatches, []

    def spied(rollout):
        for batch in minibatches(rollout):
            found.append(batch)
            yield batch

    def judged(context, latent, batch, seed):
        policy = recall(context, latent, batch, seed)
        if found and batch is found[-1]:
            judgement = policy.judge(batch["actions"], batch)
            batch["log_ratio"], batch["kl"] = (judgement.log_prob - batch["log_prob"]).detach(), judgement.kl.detach()
        return policy

    monkeypatch.setattr(algorithm, "_minibatches", spied)
    monkeypatch.setattr(algorithm.actor, "recall", judged)
    algorithm.update()
    assert sum(len(batch["rows"]) for batch in found) == 2 * 2 * ROWS
    for batch in found:
        assert (batch["rows"] >= ROWS).any()
        # Log-likelihoods of an asymmetric policy are large: 1e-5 of the largest.
        scale = max(1.0, float(batch["log_prob"].abs().max()))
        assert batch["log_ratio"].abs().max() < 1e-5 * scale
        assert batch["kl"].abs().max() < 1e-5 * scale


@pytest.mark.parametrize("method", SAMPLED)
def test_sampled_likelihoods_are_of_the_images(method):
    """Whose mean over many draws is that of the likelihood at the mirrored observation, not at the other one."""
    algorithm, _ = trained(method, mirror_share=1.0)
    with torch.no_grad():
        draws = torch.stack([algorithm._rollout()["log_prob"] for _ in range(200)])
        rows = algorithm._rollout()
        again = torch.stack(
            [algorithm.actor.policy(rows["observations"])[0].log_prob(rows["actions"]) for _ in range(200)]
        )
    error = (draws.var(0) / 200 + again.var(0) / 200).sqrt() + 1e-6
    distance = (draws.mean(0) - again.mean(0)) / error
    assert distance[ROWS:].abs().mean() < 2.0
    other = (draws.mean(0)[:ROWS] - again.mean(0)[ROWS:]) / error[ROWS:]
    assert other.abs().mean() > 5.0


def test_the_ratio_of_an_image_is_over_the_policy_that_drew_it():
    """An image that the policy would hardly take teaches nothing if it is bad: its ratio is below the clip range."""
    for advantage, moved in ((-1.0, False), (1.0, True)):
        torch.manual_seed(0)
        env = MirroredEnv()
        algorithm = construct("simple-actor-critic", env, mirror_share=1.0, entropy_coef=0.0)
        rollout(algorithm, env)
        assemble = algorithm._rollout

        def unlikely(assemble=assemble, advantage=advantage):
            rows = assemble()
            rows["acted_log_prob"][ROWS:] = rows["log_prob"][ROWS:] + 1.0
            rows["advantages"][:ROWS], rows["advantages"][ROWS:] = 0.0, advantage
            return rows

        algorithm._rollout = unlikely
        before = weights(algorithm)
        algorithm.update()
        now = weights(algorithm)
        assert torch.equal(before["actor.mlp.0.weight"], now["actor.mlp.0.weight"]) != moved
        assert not torch.equal(before["critic.mlp.0.weight"], now["critic.mlp.0.weight"])


def test_kl_and_clipped_share_are_of_rows_that_the_policy_drew():
    kl, log_prob, zeros = torch.tensor([1.0, 3.0, 100.0]), torch.tensor([0.0, 1.0, 1.0]), torch.zeros(3)
    batch = dict.fromkeys(("log_prob", "advantages", "values", "returns"), zeros)
    drawn = {"drawn": torch.tensor([1.0, 1.0, 0.0])}
    of_drawn, of_all = (terms_of_policy(log_prob, kl, zeros, {**batch, **more}, 0.2) for more in (drawn, {}))
    assert of_drawn.kl == pytest.approx(2.0)
    assert of_drawn.clip_fraction == pytest.approx(0.5)
    assert of_all.kl == pytest.approx(104.0 / 3.0)
    assert of_all.clip_fraction == pytest.approx(2.0 / 3.0)


def test_training_keeps_the_sides_together():
    """Where ratios of images began at 1, the KL of the policy from its mirror image would be over 200 nats by then."""
    torch.manual_seed(0)
    env = MirroredEnv()
    algorithm = construct("mm", env, mirror_share=1.0)
    found = []
    for _ in range(40):
        rollout(algorithm, env)
        found.append(algorithm.update()["asymmetry"])
    assert max(found) < 10.0


def test_minibatches_grow_with_the_share():
    for share, size in ((None, 64), (0.5, 96), (1.0, 128)):
        options = {} if share is None else {"mirror_share": share}
        algorithm, _ = trained("mm", **options)
        batches = list(algorithm._minibatches(algorithm._rollout()))
        assert [len(batch["actions"]) for batch in batches] == [size, size]
        rows = torch.cat([batch["rows"] for batch in batches])
        assert sorted(rows.tolist()) == list(range(2 * size))


def test_no_share_is_no_change():
    """The same bits as without the setting."""
    results = []
    for options in ({}, {"mirror_share": 0.0}, {"mirror_share": None}):
        torch.manual_seed(0)
        algorithm, _ = trained("mm", **options)
        results.append((weights(algorithm), statistics(algorithm), algorithm.update()))
    for other in results[1:]:
        assert same(results[0][0], other[0])
        assert same(results[0][1], other[1])
        assert results[0][2] == other[2]
    assert "asymmetry" not in results[0][2]


@pytest.mark.parametrize("method", METHODS)
def test_updates_are_over_the_images_too(method):
    """They move every weight, and otherwise than without; nothing is left out."""
    after = {}
    for share in (0.0, 1.0):
        torch.manual_seed(0)
        env = MirroredEnv()
        algorithm = construct(method, env, mirror_share=share)
        before = weights(algorithm)
        rollout(algorithm, env)
        losses = algorithm.update()
        assert losses["skipped_steps"] == 0
        after[share] = weights(algorithm)
        for name, value in after[share].items():
            assert value.isfinite().all(), name
            # The target of spr follows by its moving average.
            assert name.startswith("actor.target_encoder") or not torch.equal(value, before[name]), name
    assert not same(after[0.0], after[1.0])


def test_statistics_become_symmetric():
    algorithm, _ = trained("mm", mirror_share=1.0)
    before = statistics(algorithm)
    algorithm._rollout()
    assert same(statistics(algorithm), before)
    algorithm.update()
    mean, std = algorithm.actor.proprio_normalizer.mean, algorithm.actor.proprio_normalizer.std
    torch.testing.assert_close(flipped(mean), mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(flipped(std).abs(), std, rtol=1e-4, atol=1e-5)
    assert mean.abs().max() > 0.01
    assert algorithm.actor.proprio_normalizer.count == 2 * 2 * ROWS
    assert algorithm.mirroring.images is None


def test_asymmetry_is_the_kl_of_the_policy_from_its_image():
    algorithm, env = trained("mm", mirror_share=1.0, schedule="fixed", learning_rate=0.0)
    rows = algorithm._rollout()
    with torch.no_grad():
        policy, _ = algorithm.actor.policy(rows["observations"])
    mean, std = policy.mean, policy.params[1]
    ours, image = (mean[:ROWS], std[:ROWS]), (flipped(mean[ROWS:]), flipped(std[ROWS:]).abs())
    kl = (image[1] / ours[1]).log() + (ours[1] ** 2 + (ours[0] - image[0]) ** 2) / (2 * image[1] ** 2) - 0.5
    losses = algorithm.update()
    found = losses["asymmetry"]
    assert found > 0.1
    assert found == pytest.approx(kl.sum(-1).mean().item(), rel=0.2)  # of 128 actions
    with torch.no_grad():  # a policy that does not look
        algorithm.actor.mlp[-1].weight.zero_()
        algorithm.actor.mlp[-1].bias.zero_()
    rollout(algorithm, env)
    losses = algorithm.update()
    assert losses["asymmetry"] == pytest.approx(0.0, abs=1e-5)


@pytest.mark.parametrize("method", ["mm", "vae", "spr", "shared"])
def test_rsl_rls_own_runner(method, tmp_path):
    given = config(method, symmetry_cfg={"use_data_augmentation": True, "data_augmentation_func": augmented})
    runner = OnPolicyRunner(TurningEnv(), given, log_dir=None)
    before = weights(runner.alg)
    runner.learn(2)
    assert runner.alg.mirroring.share == 1.0
    assert runner.alg.skipped_steps == 0
    assert not same(weights(runner.alg), before)
    runner.save(str(tmp_path / "model.pt"))
    other = OnPolicyRunner(MirroredEnv(), config(method, mirror_share=0.5), log_dir=None)
    other.load(str(tmp_path / "model.pt"))
    other.learn(1)
    assert other.alg.iteration == 3


@pytest.mark.parametrize("method", ["mm", "shared", "mm+mc2-common"])
def test_a_restored_algorithm_continues_identically(method):
    """With a share that is another number of steps in every update."""
    settings = {"mirror_share": 0.3, **({"switch_at": 2} if "+" in method else {})}
    env = MirroredEnv()
    first = construct(method, env, **settings)
    for _ in range(2):
        rollout(first, env)
        first.update()
    file = io.BytesIO()
    torch.save(first.save(), file)
    file.seek(0)
    second = construct(method, MirroredEnv(seed=5), **settings)
    second.load(torch.load(file, weights_only=True), None, True)
    for seed in (7, 8):
        results = []
        for algorithm in (first, second):
            torch.manual_seed(seed)
            rollout(algorithm, MirroredEnv(seed=seed))
            results.append(algorithm.update())
        assert results[0] == results[1]
        assert same(weights(second), weights(first))
        assert same(adam_state(second), adam_state(first))


class TestRuns:
    """Whole runs of the trainer, on the walker."""

    def test_four_iterations_equal_two_and_two(self, tmp_path):
        whole_and_parts(tmp_path, "mm", 2, 4, ppo=replace(SMALL_PPO, mirror_share=0.4))
        assert_same(*(load_checkpoint(tmp_path / name / "model_4.pt") for name in ("whole", "part")))

    def test_it_trains_on_images(self, tmp_path):
        runner = small(tmp_path, "mm", 1, ppo=replace(SMALL_PPO, mirror_share=1.0))
        scalars = runner.step()
        assert math.isfinite(scalars["loss/asymmetry"])
        frames = runner.algorithm.actor.proprio_normalizer
        assert frames.count == 2 * 6 * 6
        symmetry = runner.env.symmetry
        torch.testing.assert_close(symmetry.group("proprio", frames.mean), frames.mean, rtol=1e-4, atol=1e-5)

    def test_a_robot_without_symmetry(self, monkeypatch):
        task = TASKS["walker-parkour"]
        asymmetric = replace(task, robot=replace(task.robot, mirror=None))
        monkeypatch.setattr("trainer.algorithms.presets.find_task", lambda _: asymmetric)
        settings = TrainConfig(task="walker-parkour", ppo=PpoConfig(mirror_share=0.5))
        with pytest.raises(
            ValueError, match=r"--ppo.mirror-share: the robot 'walker' of walker-parkour declares no left"
        ):
            resolve(settings)
        resolve(replace(settings, ppo=PpoConfig()))

    def test_a_share_that_cannot_be(self):
        with pytest.raises(ValueError, match=r"--ppo.mirror-share: expected 0 to 1, got 2"):
            resolve(TrainConfig(ppo=PpoConfig(mirror_share=2.0)))
