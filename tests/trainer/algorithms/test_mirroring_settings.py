"""Where the images of mirrored robots come from: the environment, and rsl_rl's own settings."""

from __future__ import annotations

import math

import pytest
import torch
from helpers.trainer.synthetic import (
    Flip,
    MirroredEnv,
    TurningEnv,
    augmented,
    construct,
    rollout,
    same,
    statistics,
    weights,
)

from trainer.algorithms import P3PPO


class TestWhereItComesFrom:
    def test_an_environment_without(self):
        with pytest.raises(ValueError, match="mirror_share: TurningEnv declares no left/right symmetry"):
            construct("mm", TurningEnv(), mirror_share=0.5)
        assert construct("mm", TurningEnv(), mirror_share=0.0).mirroring is None

    def test_inside_of_a_wrapper(self):
        env = TurningEnv()
        env.unwrapped = MirroredEnv()
        assert isinstance(construct("mm", env, mirror_share=0.5).mirroring.symmetry, Flip)

    @pytest.mark.parametrize("share", [-0.1, 1.1, math.nan])
    def test_the_share(self, share):
        with pytest.raises(ValueError, match=r"mirror_share: expected 0 to 1, got"):
            construct("mm", MirroredEnv(), mirror_share=share)

    def test_without_construct_algorithm(self):
        made = construct("mm")
        with pytest.raises(ValueError, match="mirror_share: expected the environment's symmetry with it, got None"):
            P3PPO(made.actor, made.critic, made.storage, method="mm", mirror_share=0.5)

    @pytest.mark.parametrize("function", [augmented, "helpers.trainer.synthetic:augmented"])
    def test_rsl_rls_settings(self, function):
        """The same bits as by the environment's own symmetry; without a share, all rows."""
        results = []
        cfg = {"use_data_augmentation": True, "use_mirror_loss": False, "data_augmentation_func": function}
        for env, options in (
            (MirroredEnv(), {"mirror_share": 1.0}),
            (TurningEnv(), {"symmetry_cfg": cfg}),
            (TurningEnv(), {"symmetry_cfg": cfg, "mirror_share": 1.0}),
        ):
            torch.manual_seed(0)
            algorithm = construct("mm", env, **options)
            rollout(algorithm, env)
            results.append((algorithm.update(), weights(algorithm), statistics(algorithm)))
        for other in results[1:]:
            assert other[0] == results[0][0]
            assert same(other[1], results[0][1])
            assert same(other[2], results[0][2])

    def test_rsl_rls_settings_without_augmentation(self):
        cfg = {"use_data_augmentation": False, "data_augmentation_func": augmented}
        assert construct("mm", symmetry_cfg=cfg).mirroring is None
        assert construct("mm", symmetry_cfg=cfg, mirror_share=0.5).mirroring.share == 0.5

    def test_what_of_them_is_not_supported(self):
        with pytest.raises(ValueError, match="symmetry_cfg: use_mirror_loss is not supported by P3PPO"):
            construct(symmetry_cfg={"use_mirror_loss": True, "data_augmentation_func": augmented})
        with pytest.raises(ValueError, match="symmetry_cfg: no setting 'weight'"):
            construct(symmetry_cfg={"weight": 1.0})

    def test_several_images(self):
        def thrice(env, obs, actions):
            return (None if obs is None else torch.cat([obs] * 3)), (None if actions is None else actions.repeat(3, 1))

        env = TurningEnv()
        algorithm = construct("mm", env, symmetry_cfg={"data_augmentation_func": thrice}, mirror_share=1.0)
        rollout(algorithm, env)
        with pytest.raises(ValueError, match="each row and one image of it: 256 rows for 128, got 384"):
            algorithm.update()
