"""PPO on the marginal likelihood of a policy with a latent, as an rsl_rl algorithm: one update for every method.

What differs from rsl_rl's PPO, and why:
- The ratio is that of the marginal policy, by the method's estimator; gradients reach the encoder through it.
- The actor brings the loss that trains its representation.
- Observation statistics are frozen over rollout and update and move after it: unchanged weights give ratio 1.
- Under Monte Carlo the old likelihood is drawn from latents independent of those that acted: with the acting latent
  among them old likelihoods would be systematically too high.
- Time-outs bootstrap from the value of the state the episode really ended in, where the environment gives it.
- Every epoch has its own shuffle; the learning rate adapts once an epoch, to the KL averaged over it.
- What is not finite is contained, counted and named: an observation or reward is replaced by 0, a step whose loss or
  gradient is not finite is left out, and broken weights are replaced by the last good ones.
- With several ranks everything that is a mean over rows is one over all ranks' rows, the statistics of observations and
  advantages among them, and what is decided is decided alike: an update is that of one rank with all environments.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from rsl_rl.algorithms import PPO
from rsl_rl.env import VecEnv
from rsl_rl.storage import RolloutStorage
from rsl_rl.utils import resolve_callable
from tensordict import TensorDict
from torch import Tensor, nn

from p3kernels import MonteCarlo, gaussian_head
from p3kernels.estimators import GaussianPolicy, MonteCarloPolicy
from trainer.algorithms.finite import LastGoodWeights, first_nonfinite, named_batch, replace_nonfinite
from trainer.algorithms.losses import clipped_surrogate, value_loss
from trainer.algorithms.methods import parse_method
from trainer.algorithms.schedule import EstimatorSchedule, Plateau
from trainer.distributed import Ranks, synchronise_normalizers
from trainer.models.actor import LatentActor, gaussian_kl, observation_sets

LEARNING_RATES = (1e-5, 1e-2)
"""Bounds of the adaptive learning rate."""


class P3PPO(PPO):
    """P³ with switchable probability estimators, and the baselines.

    Args:
        actor: The method's actor: a `P3Actor`, or another `LatentActor`.
        critic: An rsl_rl model of the value.
        storage: Rollout storage whose observations have `next_proprio` and `next_valid`.
        method: As for `parse_method`.
        switch_at: Iteration at which p3 changes from MM to MC; None for the plateau.
        plateau_window: Iterations of the plateau criterion.
        **ppo: As for rsl_rl's PPO; RND and symmetry are not supported.

    Attributes:
        report: Told, in one line, of what was not finite; prints by default.
        skipped_steps: Optimiser steps left out so far.
        restored_weights: How often weights were found broken and the last good ones came back.
        replaced_rows: Rows of observations and rewards that were not finite.
    """

    actor: LatentActor
    optimizer: torch.optim.Optimizer
    learning_rate: float

    def __init__(
        self,
        actor: LatentActor,
        critic: nn.Module,
        storage: RolloutStorage,
        *,
        method: str = "p3",
        switch_at: int | None = None,
        plateau_window: int = 400,
        **ppo: Any,
    ) -> None:
        for name in ("rnd_cfg", "symmetry_cfg"):
            if ppo.get(name) is not None:
                raise ValueError(f"{name}: not supported by P3PPO, expected None")
        self.method = parse_method(method)
        expected = resolve_callable(self.method.actor)
        if not isinstance(actor, expected):
            raise ValueError(
                f"actor: method {method!r} trains a {expected.__name__} (class_name {self.method.actor!r}),"
                f" got a {type(actor).__name__}"
            )
        super().__init__(actor, critic, storage, **ppo)
        self.ranks = Ranks(self.gpu_global_rank, self.gpu_world_size)
        self.actor.ranks = self.ranks
        for network in (self.actor, self.critic):
            synchronise_normalizers(network, self.ranks)
        if type(self.optimizer) is torch.optim.Adam:  # rsl_rl's, but one kernel for all parameters
            self.optimizer = torch.optim.Adam(self.optimizer.param_groups[0]["params"], self.learning_rate, fused=True)
        self.initial_learning_rate = self.learning_rate
        self.estimators = EstimatorSchedule(self.method, switch_at, Plateau(plateau_window))
        self.actor.estimator = self.estimators.estimator
        self.iteration = 0
        self.report: Callable[[str], None] = print if self.ranks.is_first else lambda _: None
        self.skipped_steps = self.restored_weights = self.replaced_rows = 0
        self._good = LastGoodWeights({"actor": self.actor, "critic": self.critic}, self.optimizer)
        self._level: float | None = None
        self._rewards = torch.zeros(())
        self._replaced: dict[str, Tensor] = {}

    @staticmethod
    def construct_algorithm(obs: TensorDict, env: VecEnv, cfg: dict, device: str) -> P3PPO:
        """Builds actor, critic, storage and algorithm from an rsl_rl config, which stays as it is."""
        cfg = copy.deepcopy(cfg)
        algorithm, actor_cfg, critic_cfg = cfg["algorithm"], cfg["actor"], cfg["critic"]
        algorithm_class = resolve_callable(algorithm.pop("class_name"))
        actor_class = resolve_callable(actor_cfg.pop("class_name"))
        critic_class = resolve_callable(critic_cfg.pop("class_name"))
        groups = observation_sets(obs, cfg["obs_groups"])
        actor = actor_class(obs, groups, "actor", env.num_actions, **actor_cfg).to(device)
        critic = critic_class(obs, groups, "critic", 1, **critic_cfg).to(device)
        stored = obs.clone()
        stored["next_proprio"] = torch.zeros_like(obs[actor.obs_groups[0]])
        stored["next_valid"] = torch.zeros(obs.batch_size[0], 1, device=obs.device)
        storage = RolloutStorage("rl", env.num_envs, cfg["num_steps_per_env"], stored, [env.num_actions], device)
        return algorithm_class(actor, critic, storage, device=device, **algorithm, multi_gpu_cfg=cfg.get("multi_gpu"))

    def act(self, obs: TensorDict) -> Tensor:
        """Actions [E, A] of the policy; their likelihood is stored with them where it has a closed form."""
        if self.storage.step == 0:
            self._mend_weights("before the rollout")
        obs = self._finite(obs)
        policy, _ = self.actor.policy(obs)
        action = policy.sample()
        step = self.transition
        step.observations, step.actions = obs, action
        step.values = self.critic(obs).detach()
        if isinstance(policy, MonteCarloPolicy):  # drawn in update(), for the whole rollout at once
            step.actions_log_prob = torch.zeros(len(action), device=self.device)
            step.distribution_params = ()
        else:
            step.actions_log_prob = policy.log_prob(action).detach()
            step.distribution_params = tuple(param.detach() for param in policy.params)
        return action

    def process_env_step(self, obs: TensorDict, rewards: Tensor, dones: Tensor, extras: dict[str, Any]) -> None:
        """Stores the transition; the statistics of the observations do not move here."""
        step = self.transition
        final = self._finite(extras.get("final_observations", obs))
        before = step.observations.clone(recurse=False)
        before["next_proprio"] = final[self.actor.obs_groups[0]]
        before["next_valid"] = 1.0 - dones.view(-1, 1).float()
        step.observations, step.dones = before, dones
        self._count("reward", (~torch.isfinite(rewards)).sum())
        step.rewards = rewards.nan_to_num(0.0, 0.0, 0.0)
        self._rewards = self._rewards + step.rewards.mean()
        timed_out = extras.get("time_outs")
        if timed_out is not None and timed_out.any():
            rows = timed_out.to(self.device).bool()
            if "final_observations" in extras:
                ended = self.critic(final[rows.to(final.device)].to(self.device)).squeeze(-1).detach()
            else:  # the best an environment without final observations allows
                ended = step.values[rows].squeeze(-1)
            step.rewards[rows] += self.gamma * ended
        if "curriculum/level" in extras.get("log", {}):
            self._level = float(extras["log"]["curriculum/level"])
        self.storage.add_transition(step)
        step.clear()

    def compute_returns(self, obs: TensorDict) -> None:
        """rsl_rl's, from observations that are finite, the advantages normalised over all ranks."""
        super().compute_returns(self._finite(obs))
        if not self.normalize_advantage_per_mini_batch:
            self.storage.advantages = self._normalised(self.storage.returns - self.storage.values)

    def _normalised(self, advantages: Tensor) -> Tensor:
        mean, std = self.ranks.mean_and_std(advantages)
        return (advantages - mean) / (std + 1e-8)

    def update(self) -> dict[str, float]:
        """One PPO update over the stored rollout; returns the means of its losses and diagnostics."""
        rollout = self._rollout()
        sums: dict[str, Tensor] = defaultdict(lambda: torch.zeros(()))
        steps, skipped = 0, 0
        for _ in range(self.num_learning_epochs):
            epoch_kl = []
            for batch in self._minibatches(rollout):
                policy, latent = self.actor.policy(batch["observations"])
                log_prob, entropy, kl = self._judged(policy, batch)
                value = self.critic(batch["observations"]).squeeze(-1)

                # PPO on the marginal likelihood
                if self.normalize_advantage_per_mini_batch:
                    batch["advantages"] = self._normalised(batch["advantages"])
                log_ratio = log_prob - batch["log_prob"]
                surrogate = clipped_surrogate(log_ratio, batch["advantages"], self.clip_param)
                clip = self.clip_param if self.use_clipped_value_loss else None
                value_error = value_loss(value, batch["values"], batch["returns"], clip)
                loss = surrogate + self.value_loss_coef * value_error - self.entropy_coef * entropy

                # The representation, as the method trains it
                representation = self.actor.representation_loss(policy, latent, batch, rollout)
                loss = loss + representation.total

                self.optimizer.zero_grad()
                loss.backward()
                parts = {"surrogate": surrogate, "value": value_error, "entropy": entropy, **representation.parts}
                if not self._step(loss):
                    skipped += 1
                    if skipped == 1:  # the rest of an update is mostly the same again
                        self._explain(batch, {**parts, "loss": loss})
                    self._mend_weights("within an update")
                    continue
                self.actor.after_step()

                with torch.no_grad():
                    epoch_kl.append(kl.detach())
                    outside = ((log_ratio.exp() - 1).abs() > self.clip_param).float().mean()
                    for name, term in {**parts, "kl": kl, "clip_fraction": outside}.items():
                        sums[name] = sums[name] + term.detach()
                    sums["learning_rate"] = sums["learning_rate"] + self.learning_rate
                steps += 1
            if epoch_kl:
                self._adapt_learning_rate(torch.stack(epoch_kl).mean())
        losses = {name: total / steps for name, total in zip(sums, self._logged(list(sums.values())), strict=True)}
        losses["skipped_steps"] = float(skipped)
        self.skipped_steps += skipped
        self._finish()
        return losses

    def _rollout(self) -> dict[str, Any]:
        """The stored rollout, flattened to [B] = [T·E] rows, with what an update needs and the epochs share."""
        storage, actor = self.storage, self.actor
        observations = storage.observations.flatten(0, 1)
        rollout = {
            "observations": observations.select(*actor.obs_groups, *self.critic.obs_groups),
            "actions": storage.actions.flatten(0, 1),
            "values": storage.values.flatten(),
            "returns": storage.returns.flatten(),
            "advantages": storage.advantages.flatten(),
            "log_prob": storage.actions_log_prob.flatten(),
            "num_envs": storage.num_envs,
            **actor.targets(observations),
        }
        if isinstance(actor.estimator, MonteCarlo):
            with torch.no_grad():
                policy, _ = actor.policy(observations)
                rollout["log_prob"] = policy.log_prob(rollout["actions"])
        else:
            rollout["mean"], rollout["scale"] = (params.flatten(0, 1) for params in storage.distribution_params)
        return rollout

    def _minibatches(self, rollout: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The rollout in a new order, in `num_mini_batches` parts; a rest that does not divide is left out."""
        size = len(rollout["actions"]) // self.num_mini_batches
        order = torch.randperm(len(rollout["actions"]), device=self.device)
        for start in range(0, size * self.num_mini_batches, size):
            rows = order[start : start + size]
            batch = {name: value[rows] for name, value in rollout.items() if not isinstance(value, int)}
            yield {**batch, "rows": rows}

    def _judged(self, policy: Any, batch: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
        """Log-likelihoods [B] of the actions, mean entropy, and mean KL(old ‖ new), which is to be looked at only.

        The KL is the closed form between Gaussians, else the mean of -log r, which needs no more likelihoods.
        """
        action = batch["actions"]
        if isinstance(policy, GaussianPolicy):
            gaussian = policy.mean, policy.latent_var, policy.action_std, batch["mean"], batch["scale"]
            log_prob, entropy, kl = gaussian_head(action, *gaussian, backend=policy.backend)
            return log_prob, entropy.mean(), kl.mean()
        log_prob, entropy = policy.log_prob(action), policy.entropy().mean()
        with torch.no_grad():
            if isinstance(policy, MonteCarloPolicy):
                return log_prob, entropy, (batch["log_prob"] - log_prob).mean()
            return log_prob, entropy, gaussian_kl(batch["mean"], batch["scale"], *policy.params).mean()

    def _step(self, loss: Tensor) -> bool:
        """Clips and applies the gradients; False, and nothing changed, where they or a loss is not finite."""
        parameters = [list(network.parameters()) for network in (self.actor, self.critic)]
        loss = self.ranks.mean_gradients([p for part in parameters for p in part], loss)
        norms = [nn.utils.get_total_norm(p.grad for p in part if p.grad is not None) for part in parameters]
        if not torch.isfinite(loss + sum(norms)):
            return False
        for part, norm in zip(parameters, norms, strict=True):
            nn.utils.clip_grads_with_norm_(part, self.max_grad_norm, norm)
        self.optimizer.step()
        return True

    def _explain(self, batch: dict[str, Any], parts: dict[str, Tensor]) -> None:
        """Reports the first tensor that is not finite, in the order of cause and effect."""
        networks = {"actor": self.actor, "critic": self.critic}
        parameters = [(f"{net}.{name}", p) for net, part in networks.items() for name, p in part.named_parameters()]
        gradients = [(f"the gradient of {name}", p.grad) for name, p in parameters if p.grad is not None]
        own = first_nonfinite([*parameters, *named_batch(batch), *parts.items()])
        culprit = self._first_told(own) or first_nonfinite(gradients)  # those are the same on all ranks
        self.report(f"update {self.iteration + 1}: {culprit}; step left out")

    def _first_told(self, finding: str | None) -> str | None:
        """The first rank's that has one, on all of them: what one rank finds, all act on."""
        found = [(rank, text) for rank, text in enumerate(self.ranks.gather(finding)) if text is not None]
        if not found:
            return None
        rank, text = found[0]
        return text if rank == 0 else f"{text} (rank {rank})"

    def _mend_weights(self, when: str) -> None:
        """The last good weights in place of broken ones."""
        broken = self._first_told(self._good.first_nonfinite())
        if broken is None:
            return
        self._good.restore()
        self.set_learning_rate(self.learning_rate)
        self.restored_weights += 1
        self.report(f"update {self.iteration + 1}, {when}: {broken}; back to the weights of the last good update")

    def _finite(self, obs: TensorDict) -> TensorDict:
        """Observations with 0 in place of what is not finite, which is counted."""
        obs, broken = replace_nonfinite(obs)
        for name, rows in broken.items():
            self._count(f"observations.{name}", rows)
        return obs

    def _count(self, name: str, rows: Tensor) -> None:
        self._replaced[name] = self._replaced[name] + rows if name in self._replaced else rows

    def _report_replaced(self) -> None:
        """Once an update: the first group that had values that were not finite, and in how many rows."""
        counts = self.ranks.sum(torch.stack(list(self._replaced.values()))).tolist() if self._replaced else []
        broken = {name: rows for name, rows in zip(self._replaced, counts, strict=True) if rows}
        self._replaced = {}
        self.replaced_rows += sum(broken.values())
        if broken:
            name, rows = next(iter(broken.items()))
            self.report(f"update {self.iteration + 1}: {name} was not finite in {rows} rows of the rollout; taken as 0")

    def _adapt_learning_rate(self, kl: Tensor) -> None:
        if self.desired_kl is None or self.schedule != "adaptive":
            return
        kl = self.ranks.mean(kl)
        low, high = LEARNING_RATES
        if kl > 2.0 * self.desired_kl:
            self.set_learning_rate(max(low, self.learning_rate / 1.5))
        elif kl < 0.5 * self.desired_kl:
            self.set_learning_rate(min(high, self.learning_rate * 1.5))

    def set_learning_rate(self, value: float) -> None:
        """From the next step on."""
        self.learning_rate = value
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate

    def _finish(self) -> None:
        """After an update: statistics move, the estimator may change, the storage is empty again."""
        observations = self.storage.observations.flatten(0, 1)
        self.actor.update_normalization(observations)
        self.critic.update_normalization(observations)
        self._mend_weights("after it")
        self._good.remember()
        self._report_replaced()
        self.iteration += 1
        (progress,) = self._logged([self._rewards / self.storage.num_transitions_per_env])
        (level,) = [None] if self._level is None else self._logged([torch.tensor(self._level, dtype=torch.float64)])
        if self.estimators.advance(self.iteration, progress, level):
            self._change_estimator()
        self._rewards = torch.zeros(())
        self.storage.clear()

    def _change_estimator(self) -> None:
        """To the schedule's estimator: the weights stay; what belonged to the old likelihood goes."""
        self.actor.estimator = self.estimators.estimator
        self.storage.distribution_params = None  # another shape from now on
        self.set_learning_rate(min(self.learning_rate, self.initial_learning_rate))

    def _logged(self, scalars: list[Tensor]) -> list[float]:
        """On the host, each averaged over the ranks: one message, one wait for the device."""
        return self.ranks.mean(torch.stack([value.to(self.device) for value in scalars])).tolist() if scalars else []

    def broadcast_parameters(self) -> None:
        """The first rank's weights and statistics for all, which are then what is good."""
        super().broadcast_parameters()
        self._good.remember()

    def save(self) -> dict[str, Any]:
        """rsl_rl's dict of weights and optimiser, and the algorithm's own state."""
        own = {
            "iteration": self.iteration,
            "learning_rate": self.learning_rate,
            "skipped_steps": self.skipped_steps,
            "restored_weights": self.restored_weights,
            "replaced_rows": self.replaced_rows,
            "estimators": self.estimators.state_dict(),
        }
        return {**super().save(), "p3_state": own}

    def load(self, loaded_dict: dict, load_cfg: dict | None, strict: bool) -> bool:
        """Restores what `save` gave; a dict without our part restores the weights alone."""
        load_iteration = super().load(loaded_dict, load_cfg, strict)
        own = loaded_dict.get("p3_state")
        if own is not None and (load_cfg is None or load_cfg.get("iteration")):
            self.iteration = own["iteration"]
            for name in ("skipped_steps", "restored_weights", "replaced_rows"):
                setattr(self, name, own[name])
            self.estimators.load_state_dict(own["estimators"])
            self.actor.estimator = self.estimators.estimator
            self.storage.distribution_params = None
            self.set_learning_rate(own["learning_rate"])
        self._good.remember()
        return load_iteration
