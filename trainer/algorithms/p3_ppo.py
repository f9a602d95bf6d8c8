"""PPO on the marginal likelihood of a policy with a latent, as an rsl_rl algorithm: one update for every method.

What differs from rsl_rl's PPO, and why:
- The ratio is that of the marginal policy, by the method's estimator; gradients reach the encoder through it.
- The actor brings the loss that trains its representation.
- Observation statistics are frozen over rollout and update and move after it: unchanged weights give ratio 1.
- What is remembered of an action and how it is judged again is the estimator's (`p3kernels.estimators.protocol`). Under
  Monte Carlo the old likelihood is drawn from latents independent of those that acted: with the acting latent among
  them old likelihoods would be systematically too high.
- Time-outs bootstrap from the value of the state the episode really ended in, and the decoder predicts that state,
  where the environment gives it.
- The entropy bonus is that of the exploration noise by every estimator: it does not change with the estimator, and it
  does not reward an actor for passing on its latent's noise, as a marginal policy's entropy does.
- Every epoch has its own shuffle; the learning rate adapts once an epoch, to the KL averaged over it.
- What is not finite is contained, counted and named: an observation or reward is replaced by 0, a step whose loss or
  gradient is not finite is left out, and broken weights are replaced by the last good ones.
- A share of the rollout can be trained on a second time in the mirror.
- With several ranks everything that is a mean over rows is one over all ranks' rows, the statistics of observations and
  advantages among them, and what is decided is decided alike: an update is that of one rank with all environments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from rsl_rl.algorithms import PPO
from rsl_rl.env import VecEnv
from rsl_rl.storage import RolloutStorage
from rsl_rl.utils import resolve_callable
from tensordict import TensorDict
from torch import Tensor, nn

from p3kernels.estimators.gaussian import ENTROPY_OF_UNIT_NORMAL
from trainer.algorithms.containment import Containment
from trainer.algorithms.finite import LastGoodWeights
from trainer.algorithms.guarded_step import Tally, can_skip_itself
from trainer.algorithms.losses import WeightedSum, terms_of_policy
from trainer.algorithms.methods import parse_method
from trainer.algorithms.mirroring import Mirroring, Symmetry, share_of, symmetry_of
from trainer.algorithms.plug_in import read_config
from trainer.algorithms.rollout_rows import RolloutRows
from trainer.algorithms.rows import PackedRows
from trainer.algorithms.saved_state import SavedState
from trainer.algorithms.schedule import EstimatorSchedule, Plateau
from trainer.algorithms.step_graph import StepGraph
from trainer.algorithms.steps import Steps
from trainer.models.actor import LatentActor, observation_sets
from trainer.models.dense import value_of, value_of_inputs
from trainer.models.latent_noise import EVERY, latent_share
from trainer.models.ranks import Ranks, synchronise_normalizers

LEARNING_RATES = (1e-5, 1e-2)
"""Bounds of the adaptive learning rate."""
ENTROPIES = ("exploration", "marginal")
"""Whose entropy the bonus may reward: the exploration noise's, or the policy's as its estimator has it."""


class P3PPO(Containment, RolloutRows, Steps, SavedState, PPO):
    """P³ with switchable probability estimators, and the baselines.

    Args:
        actor: The method's actor: a `P3Actor`, or another `LatentActor`.
        critic: An rsl_rl model of the value.
        storage: Rollout storage whose observations have `next_proprio` and `next_valid`.
        method: A name that `parse_method` knows.
        switch_at: Iterations at which the method's phases change, one a change; None for the plateau.
        plateau_window: Iterations of the plateau criterion.
        dual_clip: c > 1: a row of negative advantage A loses c |A| at most, whatever its ratio; None for no bound.
        entropy: Whose entropy the bonus rewards: "exploration", or "marginal", where the estimator has it in closed
            form (Monte Carlo has not, and gives that of the exploration).
        mirror_share: Share of the rollout's steps, in [0, 1], that are also trained on in the mirror.
        symmetry: The environment's, which mirroring needs.
        cuda_graph: Whether a minibatch's step is captured and launched as one CUDA graph; nothing to a CPU.
        **ppo: Arguments of rsl_rl's PPO; RND is not supported, of symmetry the data augmentation alone.

    Attributes:
        report: Called with a line about what was not finite; prints by default.
        on_phase: Called within an update when its rollout is "prepared" and when its minibatches are "trained".
        skipped_steps: Optimiser steps left out so far.
        restored_weights: How often weights were found broken and the last good ones came back.
        replaced_rows: Rows of observations and rewards that were not finite.
        deferred: Whether the host looks at an update once an epoch and not at every step, as on a GPU.
        step_graph: The graph of a minibatch's step, where that is asked for and can be.
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
        switch_at: int | Sequence[int] | None = None,
        plateau_window: int = 400,
        dual_clip: float | None = None,
        entropy: str = "exploration",
        mirror_share: float = 0.0,
        symmetry: Symmetry | None = None,
        cuda_graph: bool = False,
        **ppo: Any,
    ) -> None:
        if dual_clip is not None and not dual_clip > 1:
            raise ValueError(f"dual_clip: expected None or a number above 1, got {dual_clip}")
        if entropy not in ENTROPIES:
            raise ValueError(f"entropy: expected one of {', '.join(ENTROPIES)}, got {entropy!r}")
        for name in ("rnd_cfg", "symmetry_cfg"):
            if ppo.get(name) is not None:
                raise ValueError(f"{name}: not supported by P3PPO, expected None")
        self.mirroring = None
        if share_of(mirror_share, None) > 0:
            if symmetry is None:
                raise ValueError("mirror_share: expected the environment's symmetry with it, got None")
            self.mirroring = Mirroring(symmetry, mirror_share, actor.obs_groups[0])
        self.method = parse_method(method)
        expected = resolve_callable(self.method.actor)
        if not isinstance(actor, expected):
            raise ValueError(
                f"actor: method {method!r} trains a {expected.__name__} (class_name {self.method.actor!r}),"
                f" got a {type(actor).__name__}"
            )
        if self.method.latent_noise_coef > 0 and actor.latent_noise is None:
            raise ValueError(
                f"actor: method {method!r} needs a latent_noise_coef above 0, its own is"
                f" {self.method.latent_noise_coef:g}; without it, it is mm"
            )
        super().__init__(actor, critic, storage, **ppo)
        self.ranks = Ranks(self.gpu_global_rank, self.gpu_world_size)
        self.actor.ranks = self.ranks
        for network in (self.actor, self.critic):
            synchronise_normalizers(network, self.ranks)
        if type(self.optimizer) is torch.optim.Adam:  # rsl_rl's, but one kernel for all parameters
            parameters = self.optimizer.param_groups[0]["params"]
            self.optimizer = torch.optim.Adam(parameters, self.learning_rate, fused=True)
        self.deferred = torch.device(self.device).type != "cpu" and can_skip_itself(self.optimizer)
        self._rate = torch.tensor(self.learning_rate, device=self.device)
        self._weighted, self._one = WeightedSum(self.device), torch.ones((), device=self.device)
        self.set_learning_rate(self.learning_rate)
        self.initial_learning_rate = self.learning_rate
        self.dual_clip, self.entropy = dual_clip, entropy
        self.estimators = EstimatorSchedule(self.method, switch_at, Plateau(plateau_window))
        self.actor.estimator = self.estimators.estimator
        self.iteration = 0
        self.report: Callable[[str], None] = print if self.ranks.is_first else lambda _: None
        self.on_phase: Callable[[str], None] = lambda _: None
        self.skipped_steps = self.restored_weights = self.replaced_rows = 0
        self._trained = [list(network.parameters()) for network in (self.actor, self.critic)]
        self._good = LastGoodWeights({"actor": self.actor, "critic": self.critic}, self.optimizer)
        self._difficulty: float | None = None
        self._rewards = torch.zeros((), device=self.device)
        self._seed: Tensor | None = None
        self._replaced: dict[str, Tensor] = {}
        self._packed: PackedRows | None = None
        self.step_graph = StepGraph() if cuda_graph and self.deferred and self.ranks.size == 1 else None
        if self.step_graph is None and cuda_graph and self.deferred:
            self.report("no CUDA graph of an update's step: the ranks speak with each other within it")

    @staticmethod
    def construct_algorithm(obs: TensorDict, env: VecEnv, cfg: dict, device: str) -> P3PPO:
        """Builds actor, critic, storage and algorithm from an rsl_rl config: `trainer.algorithms.plug_in`."""
        cfg = read_config(cfg)
        algorithm, actor_cfg, critic_cfg = cfg["algorithm"], cfg["actor"], cfg["critic"]
        algorithm_class, actor_class, critic_class = (
            part.pop("class_name") for part in (algorithm, actor_cfg, critic_cfg)
        )
        symmetry_cfg = algorithm.pop("symmetry_cfg", None)
        algorithm["mirror_share"] = share_of(algorithm.get("mirror_share"), symmetry_cfg)
        if algorithm["mirror_share"] > 0:
            algorithm["symmetry"] = symmetry_of(env, symmetry_cfg)
        groups = observation_sets(obs, cfg["obs_groups"])
        own = parse_method(algorithm.get("method", "p3")).latent_noise_coef
        if own > 0:
            actor_cfg.setdefault("latent_noise_coef", own)
        actor = actor_class(obs, groups, "actor", env.num_actions, **actor_cfg).to(device)
        critic = critic_class(obs, groups, "critic", 1, **critic_cfg).to(device)
        stored = obs.clone()
        stored["next_proprio"] = torch.zeros_like(obs[actor.obs_groups[0]])
        stored["next_valid"] = torch.zeros(obs.batch_size[0], 1, device=obs.device)
        storage = RolloutStorage("rl", env.num_envs, cfg["num_steps_per_env"], stored, [env.num_actions], device)
        return algorithm_class(actor, critic, storage, device=device, **algorithm, multi_gpu_cfg=cfg["multi_gpu"])

    def act(self, obs: TensorDict) -> Tensor:
        """Actions [E, A] of the policy, stored with what has to be remembered of them."""
        if self.storage.step == 0:
            self._mend_weights("before the rollout")
        obs = self._finite(obs)
        policy, _ = self.actor.policy(obs)
        action = policy.sample()
        step = self.transition
        step.observations, step.actions = obs, action
        step.values = value_of(self.critic, obs).detach()
        estimator = self.actor.estimator
        if estimator.deferred:  # until update(), for the whole rollout at once
            step.actions_log_prob, step.distribution_params = torch.zeros(len(action), device=self.device), ()
        else:
            remembered = policy.remember(action)
            step.actions_log_prob = remembered["log_prob"]
            step.distribution_params = tuple(remembered[name] for name in estimator.remembers)
        return action

    def process_env_step(self, obs: TensorDict, rewards: Tensor, dones: Tensor, extras: dict[str, Any]) -> None:
        """Stores the transition; the statistics of the observations do not move here."""
        step = self.transition
        final = self._finite(extras.get("final_observations", obs))
        before = step.observations.clone(recurse=False)
        before["next_proprio"] = final[self.actor.obs_groups[0]]
        # Where an episode ended, `obs` is the next one's first; a simulator that broke has no state to predict.
        unknown = extras.get("broken", torch.zeros_like(dones)) if "final_observations" in extras else dones
        before["next_valid"] = 1.0 - unknown.view(-1, 1).to(self.device).float()
        step.observations, step.dones = before, dones
        self._count("reward", (~torch.isfinite(rewards)).sum())
        step.rewards = rewards.nan_to_num(0.0, 0.0, 0.0)
        self._rewards = self._rewards + step.rewards.mean()
        timed_out = extras.get("time_outs")
        if timed_out is not None and (self.deferred or timed_out.any()):
            rows = timed_out.to(self.device).bool()
            ended = step.values.squeeze(-1)  # the best an environment without final observations allows
            if "final_observations" in extras:
                ended = self._values_where(rows, final)
            step.rewards = step.rewards + self.gamma * torch.where(rows, ended, 0.0)
        if "curriculum/difficulty" in extras.get("log", {}):
            self._difficulty = float(extras["log"]["curriculum/difficulty"])
        self.storage.add_transition(step)
        step.clear()

    def _values_where(self, rows: Tensor, observations: TensorDict) -> Tensor:
        """[E]: the critic's values at observations [E], right in rows [E] alone, which on a CPU are all it looks at.

        On a GPU all are computed: which ones are needed the host would have to wait for.
        """
        if self.deferred:
            return value_of(self.critic, observations.to(self.device)).squeeze(-1).detach()
        values = torch.zeros(len(rows), device=self.device)
        values[rows] = self.critic(observations[rows.to(observations.device)].to(self.device)).squeeze(-1).detach()
        return values

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
        rollout = self._prepared(self._rollout())
        step, tally, skipped = self._guarded_step(), Tally(self.device, self.ranks), 0
        for _ in range(self.num_learning_epochs):
            seen: list[Tensor] = []
            for rows in self._shuffled(rollout) if self.deferred else ():
                seen.append(rows)
                tally.add(*self._unseen_step(rollout, step, rows))
            for batch in () if self.deferred else self._minibatches(rollout):
                loss, terms = self._loss(batch, rollout)
                taken = self._descended(loss, step)
                if taken:
                    self.actor.after_step()
                    tally.add(taken, terms)
                else:
                    skipped += 1
                    self._left_out(batch, {**terms, "loss": loss}, first=skipped == 1)
                    tally.skip(taken)
            means, left_out = tally.end_epoch()
            if self.deferred:
                for number in left_out:
                    skipped += 1
                    self._left_out_unseen(seen[number], rollout, first=skipped == 1)
            if means:
                self._adapt_learning_rate(means["kl"])
        losses = {**tally.means, "skipped_steps": float(skipped), **self._mirrored()}
        self.skipped_steps += skipped
        if self.actor.latent_noise is not None:
            losses["latent_noise_coef"] = self.actor.latent_noise.coef
            if tally.steps:
                self.actor.latent_noise.adapt(losses["latent_share"])
        self._finish()
        return losses

    def _loss(self, batch: dict[str, Any], rollout: dict[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of a minibatch, and its terms and diagnostics by name; nothing here is read by the host."""
        context, latent = self.actor.encode_normalised(batch)
        policy = self.actor.recall(context, latent, batch, self._seed)
        log_prob, entropy, kl = policy.judge(batch["actions"], batch)
        value = value_of_inputs(self.critic, batch["critic"]).squeeze(-1)

        # PPO on the marginal likelihood
        if self.normalize_advantage_per_mini_batch:
            batch["advantages"] = self._normalised(batch["advantages"])
        clips = {"clip": self.clip_param, "dual_clip": self.dual_clip, "clips_value": self.use_clipped_value_loss}
        judged = terms_of_policy(log_prob, kl, value, batch, **clips, ranks=self.ranks)
        terms = {"surrogate": judged.surrogate, "value": judged.value, "entropy": self._entropy(entropy)}
        weights = {"surrogate": 1.0, "value": self.value_loss_coef, "entropy": -self.entropy_coef}

        # The representation, as the method trains it
        representation = self.actor.representation_loss(policy, latent, batch, rollout)
        vectors = [*judged.losses, terms["entropy"], *representation.vectors]
        terms |= representation.parts
        weights |= representation.weights
        if self.actor.latent_noise is not None:
            terms["latent_share"] = latent_share(self.actor.mlp, context, latent, self.actor.action_std, every=EVERY)
            vectors.append(terms["latent_share"])
            weights["latent_share"] = self.actor.latent_noise.coef
        loss = self._weighted(vectors, weights.values())
        return loss, {**terms, "kl": judged.kl, "clip_fraction": judged.clip_fraction, "learning_rate": self._rate}

    def _mirrored(self) -> dict[str, float]:
        """What the log has of mirroring."""
        scalars = {} if self.mirroring is None else self.mirroring.scalars
        return dict(zip(scalars, self._logged(list(scalars.values())), strict=True))

    def _entropy(self, marginal: Tensor) -> Tensor:
        """What the bonus rewards, a mean over rows; `marginal` [B] is the policy's own entropy."""
        if self.entropy == "marginal":
            return marginal.mean()
        return self.actor.log_std.sum() + self.actor.log_std.numel() * ENTROPY_OF_UNIT_NORMAL

    def _adapt_learning_rate(self, kl: float) -> None:
        if self.desired_kl is None or self.schedule != "adaptive":
            return
        low, high = LEARNING_RATES
        if kl > 2.0 * self.desired_kl:
            self.set_learning_rate(max(low, self.learning_rate / 1.5))
        elif 0 < kl < 0.5 * self.desired_kl:  # an estimate below 0 is noise, and no sign of room
            self.set_learning_rate(min(high, self.learning_rate * 1.5))

    def set_learning_rate(self, value: float) -> None:
        """From the next step on."""
        self.learning_rate = value
        self._rate.fill_(value)
        for group in self.optimizer.param_groups:
            group["lr"] = self._rate if self.deferred else value
            group["capturable"] = group.get("capturable", False) or self.deferred

    def _finish(self) -> None:
        """After an update: statistics move, the estimator may change, the storage is empty again."""
        self.on_phase("trained")
        observations = self.storage.observations.flatten(0, 1)
        self.actor.update_normalization(observations)
        self.critic.update_normalization(observations)
        if self.mirroring is not None and self.mirroring.images is not None:
            # The statistics are of all that is trained on, and so become symmetric.
            self.actor.update_normalization(self.mirroring.images)
            self.critic.update_normalization(self.mirroring.images)
            self.mirroring.images = None
        self._mend_weights("after it")
        self._good.remember()
        self._report_replaced()
        self.iteration += 1
        (progress,) = self._logged([self._rewards / self.storage.num_transitions_per_env])
        difficulty = None
        if self._difficulty is not None:
            (difficulty,) = self._logged([torch.tensor(self._difficulty, dtype=torch.float64)])
        if self.estimators.advance(self.iteration, progress, difficulty):
            self._change_estimator()
        self._rewards = torch.zeros((), device=self.device)
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

    def remember_weights(self) -> None:
        """Takes weights that were put in from outside as good."""
        self._good.remember()
