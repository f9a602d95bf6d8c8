"""What a run has learnt, in words and pictures, and what its phases were: the beginning of its report."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from pathlib import Path

from trainer.evaluation.look import PICTURE, read_look

_ESTIMATORS = (
    ("mm", "moment matching: mean and variance of the latent pushed through the network in closed form"),
    ("cm", "covariance matching: the same with the correlation between the network's units"),
    ("mc", "Monte Carlo: the likelihood averaged over samples of the latent, as many as the number says"),
    ("shared", "shared noise: the latent's noise of the acting policy, remembered"),
)


def learnt_section(run_dir: Path, changes: Sequence[tuple[int, str]]) -> str:
    """HTML: the sentence and the strip of pictures of the last look at the policy, and the change of estimator.

    Args:
        run_dir: The run.
        changes: First iteration of each estimator, and its name.
    """
    parts = []
    look = read_look(run_dir)
    if look is not None:
        parts.append(f"<p><strong>{html.escape(look.words)}</strong> ({html.escape(look.checkpoint)})</p>")
        try:
            image = base64.b64encode((run_dir / PICTURE).read_bytes()).decode() if look.picture == PICTURE else ""
        except OSError:
            image = ""
        if image:
            source = f"data:image/png;base64,{image}"
            parts.append(f'<div class="wide"><img src="{source}" alt="the policy, a third of a second apart"></div>')
        elif look.picture != PICTURE:
            parts.append(f"<p>No pictures: {html.escape(look.picture)}</p>")
    if len(changes) > 1:
        parts.append(f"<p>{html.escape(_phases(changes))}</p>")
    return "\n".join(parts)


def _phases(changes: Sequence[tuple[int, str]]) -> str:
    """What the change of estimator is, and what to expect of it."""
    told = [f"{name} from iteration {at}" for at, name in changes]
    meanings = [f"{kind} is {text}" for kind, text in _ESTIMATORS if any(name.startswith(kind) for _, name in changes)]
    return (
        f"The probability of an action was estimated by {', then '.join(told)}. {'; '.join(meanings)}. At a change"
        " (dashed lines) weights, observations and rewards go on as they are; likelihoods, ratios and KL are of another"
        " estimator, so their curves may jump, and the learning rate begins again no higher than at the start."
    )
