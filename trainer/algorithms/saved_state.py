"""What a checkpoint has of an algorithm beyond rsl_rl's weights and optimiser, and how it comes back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rsl_rl.algorithms import PPO
from rsl_rl.storage import RolloutStorage

from trainer.algorithms.finite import LastGoodWeights
from trainer.algorithms.plug_in import mismatch
from trainer.algorithms.schedule import EstimatorSchedule


class SavedState(PPO):
    """The part of `P3PPO` that is saved and loaded."""

    actor: Any
    storage: RolloutStorage
    estimators: EstimatorSchedule
    iteration: int
    learning_rate: float
    skipped_steps: int
    restored_weights: int
    replaced_rows: int
    deferred: bool
    set_learning_rate: Callable[[float], None]
    _good: LastGoodWeights

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
        if self.actor.latent_noise is not None:
            own["latent_noise_coef"] = self.actor.latent_noise.coef
        saved = super().save()
        for group in saved["optimizer_state_dict"]["param_groups"]:
            group["lr"] = float(group["lr"])  # on a GPU it is a tensor
        return {**saved, "p3_state": own}

    def load(self, loaded_dict: dict, load_cfg: dict | None, strict: bool) -> bool:
        """Restores what `save` gave; a dict without our part restores the weights alone.

        Raises:
            ValueError: It is of other networks; names the first tensor that does not fit.
        """
        try:
            load_iteration = super().load(loaded_dict, load_cfg, strict)
        except (RuntimeError, KeyError) as error:
            raise ValueError(f"other networks than these: {mismatch(error)}") from error
        own = loaded_dict.get("p3_state")
        if own is not None and (load_cfg is None or load_cfg.get("iteration")):
            self.iteration = own["iteration"]
            for name in ("skipped_steps", "restored_weights", "replaced_rows"):
                setattr(self, name, own[name])
            self.estimators.load_state_dict(own["estimators"])
            self.actor.estimator = self.estimators.estimator
            self.storage.distribution_params = None
            self.set_learning_rate(own["learning_rate"])
            if self.actor.latent_noise is not None and "latent_noise_coef" in own:
                self.actor.latent_noise.coef = own["latent_noise_coef"]
        if self.deferred:  # the optimiser took over the checkpoint's number
            self.set_learning_rate(float(self.learning_rate))
        self._good.remember()
        return load_iteration
