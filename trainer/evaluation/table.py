"""What an evaluation found: as a Markdown table, as JSON, and as bars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from trainer.evaluation.episodes import Episodes
from trainer.evaluation.statistics import Interval, mean_interval, share_interval

TRIALS = 10
"""A success count is of the first so many episodes of a terrain."""


@dataclass(frozen=True)
class Row:
    """One policy under one condition."""

    label: str
    method: str
    latent: str
    difficulty: float | None
    """Difficulty of the terrains; None on the plane."""
    strength: float
    episodes: dict[str, Episodes]
    """Episodes by the name of their terrain."""
    engine: str = "mujoco"
    """Engine that simulated them."""

    @property
    def name(self) -> str:
        """Name of its bars in the figure."""
        return f"{self.label}, z {self.latent}" + ("" if self.engine == "mujoco" else f", {self.engine}")

    @property
    def condition(self) -> str:
        """What rows are compared under."""
        difficulty = "" if self.difficulty is None else f"difficulty {self.difficulty:g}, "
        return f"{difficulty}randomisation × {self.strength:g}"


def numbers(row: Row) -> dict[str, Any]:
    """A row as JSON has it: means over the terrains, then each terrain."""
    return {
        "checkpoint": row.label,
        "method": row.method,
        "engine": row.engine,
        "latent": row.latent,
        "difficulty": row.difficulty,
        "strength": row.strength,
        **_measured(list(row.episodes.values())),
        "terrains": {
            name: {**_measured([episodes]), "success": _success(episodes)} for name, episodes in row.episodes.items()
        },
    }


def markdown(rows: Sequence[Row]) -> str:
    """One table; policies under the same condition are beside each other."""
    terrains = list(dict.fromkeys(name for row in rows for name in row.episodes))
    graded = any(row.difficulty is not None for row in rows)
    engines = len({row.engine for row in rows}) > 1
    head = ["checkpoint", "method", *(["engine"] if engines else []), "z", *(["difficulty"] if graded else [])]
    head += ["randomisation", "total reward", "lifetime s", *(f"{name}, of {_trials(rows)}" for name in terrains)]
    head += ["fell", "of the way", "distance m", "energy J", "J/m", "torque N m", "foot force N"]
    lines = [head, ["---"] * 5 + ["---:"] * (len(head) - 5)]
    for row in rows:
        found = numbers(row)
        grade = [] if not graded else ["–" if row.difficulty is None else f"{row.difficulty:g}"]
        cells = [row.label, row.method, *([row.engine] if engines else []), row.latent, *grade, f"× {row.strength:g}"]
        cells += [_plus_minus(found["reward"]), _plus_minus(found["lifetime"])]
        for name in terrains:
            cells.append(_count(found["terrains"][name]["success"]) if name in row.episodes else "")
        cells += [f"{found['fell']['value']:.0%}", f"{found['followed']['value']:.0%}"]
        cells += [_plus_minus(found["distance"]), _plus_minus(found["energy"], 0)]
        cells.append("–" if found["energy_per_metre"] is None else f"{found['energy_per_metre']:.0f}")
        cells += [_plus_minus(found["torque"], 1), _plus_minus(found["foot_force"], 0)]
        lines.append(cells)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def plot(rows: Sequence[Row], path: Path) -> None:
    """Bars with their intervals: a line of panels for each condition, a colour for each policy."""
    from matplotlib.figure import Figure  # noqa: PLC0415  only a picture needs it

    conditions = list(dict.fromkeys(row.condition for row in rows))
    names = list(dict.fromkeys(row.name for row in rows))
    figure = Figure(figsize=(12.0, 0.6 + 2.8 * len(conditions)), layout="constrained")
    panels = figure.subplots(len(conditions), 3, squeeze=False)
    for condition, line in zip(conditions, panels, strict=True):
        here = [row for row in rows if row.condition == condition]
        found = [numbers(row) for row in here]
        colours = [f"C{names.index(row.name) % 10}" for row in here]
        line[0].set_ylabel(condition)
        for panel, quantity, title in zip(line, ("reward", "lifetime"), ("total reward", "lifetime, s"), strict=False):
            _bars(panel, np.arange(len(here)), [one[quantity] for one in found], colours, 0.8)
            panel.set_xticks([])
            panel.set_title(title)
        terrains = list(dict.fromkeys(name for row in here for name in row.episodes))
        width = 0.8 / len(here)
        for index, (one, colour) in enumerate(zip(found, colours, strict=True)):
            shares = [one["terrains"][name]["success"] for name in terrains]
            places = np.arange(len(terrains)) + (index - (len(here) - 1) / 2) * width
            _bars(line[2], places, shares, [colour] * len(terrains), width)
        line[2].set_xticks(range(len(terrains)), terrains)
        line[2].set_ylim(0, 1)
        line[2].set_title("success")
    handles = [panels[0][0].bar(0, 0, color=f"C{index % 10}") for index in range(len(names))]
    figure.legend(handles, names, loc="outside lower center", ncols=min(3, len(names)))
    figure.savefig(path, dpi=120)


def _bars(panel: Any, places: np.ndarray, found: Sequence[dict[str, float]], colours: list[str], width: float) -> None:
    values = [one["value"] for one in found]
    below = [max(0.0, one["value"] - one["low"]) for one in found]
    above = [max(0.0, one["high"] - one["value"]) for one in found]
    finite = np.nan_to_num([below, above], posinf=0.0)
    panel.bar(places, values, width, color=colours, yerr=finite, capsize=2)


def _measured(terrains: Sequence[Episodes]) -> dict[str, Any]:
    def interval(*values: Tensor) -> dict[str, float]:
        return _plain(mean_interval([value.double().numpy() for value in values]))

    fell = [int(episodes.fell.sum()) for episodes in terrains]
    total = sum(len(episodes.fell) for episodes in terrains)
    energy = sum(float(episodes.energy.sum()) for episodes in terrains)
    distance = sum(float(episodes.distance.sum()) for episodes in terrains)
    return {
        "episodes": total,
        "reward": interval(*(episodes.total_reward for episodes in terrains)),
        "lifetime": interval(*(episodes.lifetime for episodes in terrains)),
        "distance": interval(*(episodes.distance for episodes in terrains)),
        "followed": interval(*(episodes.followed_share for episodes in terrains)),
        "energy": interval(*(episodes.energy for episodes in terrains)),
        "energy_per_metre": energy / distance if distance > 0 else None,
        "torque": interval(*(episodes.torque for episodes in terrains)),
        "foot_force": interval(*(episodes.foot_force for episodes in terrains)),
        "fell": _plain(share_interval(sum(fell), total)),
        "success": _plain(share_interval(sum(int(episodes.success.sum()) for episodes in terrains), total)),
    }


def _success(episodes: Episodes) -> dict[str, Any]:
    trials = min(TRIALS, len(episodes.success))
    return {
        **_plain(share_interval(int(episodes.success.sum()), len(episodes.success))),
        "trials": trials,
        "successes_of_trials": int(episodes.success[:trials].sum()),
    }


def _plain(interval: Interval) -> dict[str, float]:
    return {"value": interval.value, "low": interval.low, "high": interval.high}


def _trials(rows: Sequence[Row]) -> int:
    return min([TRIALS, *(len(episodes.success) for row in rows for episodes in row.episodes.values())])


def _plus_minus(found: dict[str, float], digits: int = 2) -> str:
    half = 0.5 * (found["high"] - found["low"])
    return f"{found['value']:.{digits}f} ± {half:.{digits}f}"


def _count(success: dict[str, Any]) -> str:
    share = f"{success['value']:.0%}, {success['low']:.0%} to {success['high']:.0%}"
    return f"{success['successes_of_trials']} ({share})"
