"""What `p3 diagnose` writes into the directory of a run, by name."""

from __future__ import annotations

FOLDER = "diagnose"
NUMBERS, TABLES = "diagnose.json", "diagnose.md"
CAPTIONS = {
    "data_efficiency": "Data efficiency under identical policies, ± 2 standard errors; the orange bar is the paper's",
    "kl_scan": "KL(old ‖ new) after one epoch's update, ± 2 standard errors",
    "action_cloud": "Two actions at a state of median variance, exploration not included",
    "variance_gap": "Std of each action by the latent, sampled and propagated",
    "gaussianity": "Shapiro–Wilk tests of the action means",
    "correlation": "Correlation of the action means at a random state",
    "linearity": "Linearity of the actor in its latent; the paper's thresholds are dashed",
    "gradient_noise": "Agreement of the clipped surrogate's gradients between redraws of the latents",
    "noise_scaling": "Gradient noise against the paper's law; filled points are fitted",
}
"""Figures, by the file's name without .png, in the order of a report."""
