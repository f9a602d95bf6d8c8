"""Returns, advantages and the next observation, by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.trainer.synthetic import (
    TurningEnv,
    construct,
    observations,
    same,
    weights,
)
from torch import Tensor, nn

from trainer.algorithms import P3PPO


class ColumnCritic(nn.Module):
    """A critic that says what the first column of its observation is."""

    obs_groups = ("critic",)

    def forward(self, obs: Any) -> Tensor:
        return obs["critic"][:, :1]

    def get_hidden_state(self) -> None:
        return None

    def reset(self, dones: Tensor | None = None, hidden_state: Any = None) -> None:
        pass


class TestReturns:
    """Two environments, three steps, γ = λ = 0.5. Values 1, 2, 3 and 4 after the last step; rewards 1 and 2.

    The first falls at its second step, in a state of value 100; the second times out there, in a state of value 10.
    """

    def fill(self, *, with_final: bool, time_outs: bool = True) -> tuple[P3PPO, list[Tensor]]:
        algorithm = construct("mm", TurningEnv(2), steps=3, gamma=0.5, lam=0.5)
        algorithm.critic = ColumnCritic()
        given = []
        for step in range(3):
            obs = observations(2)
            obs["critic"][:, 0] = step + 1.0
            algorithm.act(obs)
            following, final = observations(2), observations(2)
            following["critic"][:, 0] = step + 2.0
            final["critic"][:, 0] = torch.tensor([100.0, 10.0]) if step == 1 else step + 2.0
            extras: dict[str, Any] = {"final_observations": final} if with_final else {}
            if time_outs:
                extras["time_outs"] = torch.tensor([False, step == 1])
            given.append(torch.tensor([1.0, 2.0]))
            algorithm.process_env_step(following, given[-1], torch.tensor([step == 1, step == 1]), extras)
        algorithm.compute_returns(following)
        return algorithm, given

    @pytest.mark.parametrize(
        ("settings", "second"),
        [
            # reward 2 + γ 10 = 7 at the time-out; before it 2 + γ 2 - 1 + γλ (7 - 2) = 3.25 above the value 1
            ({"with_final": True}, [4.25, 7.0, 4.0]),
            # from the value 2 of the state before: 2 + γ 2 = 3
            ({"with_final": False}, [3.25, 3.0, 4.0]),
            # a fall: 2 - 2 = 0 at the end, 2 + γ 2 - 1 = 2 above the value 1 before it
            ({"with_final": True, "time_outs": False}, [3.0, 2.0, 4.0]),
        ],
    )
    def test_by_hand(self, settings, second):
        algorithm, rewards = self.fill(**settings)
        first = [1.75, 1.0, 3.0]  # δ = 1, -1, 0; A = 1 + γλ (-1), -1, 0
        expected = torch.tensor([first, second]).T
        torch.testing.assert_close(algorithm.storage.returns[..., 0], expected)
        advantage = expected - torch.tensor([[1.0], [2.0], [3.0]])
        normalised = (advantage - advantage.mean()) / advantage.std()
        torch.testing.assert_close(algorithm.storage.advantages[..., 0], normalised)
        assert all(torch.equal(reward, torch.tensor([1.0, 2.0])) for reward in rewards)  # not written into

    def test_next_proprioception(self):
        """It is that of the step's end, not of the reset; also where the episode ended, unless the robot broke."""
        algorithm = construct("mm", TurningEnv(3), steps=1)
        obs, following, final = (observations(3) for _ in range(3))
        algorithm.act(obs)
        done, broken = torch.tensor([False, True, True]), torch.tensor([False, False, True])
        extras = {"final_observations": final, "broken": broken}
        algorithm.process_env_step(following, torch.zeros(3), done, extras)
        stored = algorithm.storage.observations[0]
        assert torch.equal(stored["next_proprio"], final["proprio"])
        assert stored["next_valid"].squeeze(-1).tolist() == [1.0, 1.0, 0.0]
        assert algorithm._rollout()["continues"].tolist() == [1.0, 0.0, 0.0]
        assert torch.equal(stored["proprio"], obs["proprio"])
        assert "next_proprio" not in obs.keys()  # noqa: SIM118  a TensorDict iterates over rows

    def test_progress_is_the_environments_reward(self, monkeypatch):
        """What a time-out adds to the rewards belongs to the returns, not to the curve that must level off."""
        algorithm, _ = self.fill(with_final=True)
        algorithm.critic = construct("mm", TurningEnv(2)).critic
        told = []
        monkeypatch.setattr(algorithm.estimators, "advance", lambda _, progress, level: told.append(progress))
        algorithm.update()
        assert told == [pytest.approx(1.5)]


@pytest.mark.parametrize("with_final", [True, False])
def test_next_proprioception_where_an_episode_ended(with_final):
    """Two worlds that differ only in the proprioception after the end of an episode train alike without final ones."""
    losses, after = [], []
    for beyond in (0.0, 1000.0):
        torch.manual_seed(0)
        env = TurningEnv()
        algorithm = construct("mm", env)
        with torch.inference_mode():
            obs = env.get_observations()
            for _ in range(8):
                following, reward, done, _ = env.step(algorithm.act(obs))
                final = following.clone()
                final["proprio"][done] += beyond
                extras = {"final_observations": final} if with_final else {}
                algorithm.process_env_step(following if with_final else final, reward, done, extras)
                obs = following
            algorithm.compute_returns(obs)
        assert algorithm.storage.dones.any()
        losses.append(algorithm.update())
        after.append(weights(algorithm))
    assert losses[0]["proprio"] > 0
    assert same(*after) is not with_final
    assert (losses[0] == losses[1]) is not with_final
    assert (losses[1]["proprio"] > 10 * losses[0]["proprio"]) is with_final
