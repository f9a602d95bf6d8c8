"""Figures of the diagnostics: a panel for each named result, side by side. matplotlib is imported only to draw."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from p3kernels.diagnostics.action_cloud import ActionCloud, PlaneGaussian
from p3kernels.diagnostics.correlation import Correlation
from p3kernels.diagnostics.data_efficiency import DataEfficiency
from p3kernels.diagnostics.gaussianity import Gaussianity
from p3kernels.diagnostics.gradient_noise import GradientNoise
from p3kernels.diagnostics.kl_scan import Estimate, KlScan
from p3kernels.diagnostics.linearity import Linearity
from p3kernels.diagnostics.noise_scaling import NoiseScaling, PowerLaw
from p3kernels.diagnostics.variance_gap import VarianceGap

BLACK, BLUE, ORANGE, GREEN, RED, PURPLE, SKY, GREY = (
    *("#1d242b", "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#8a939c"),
)
"""Okabe and Ito's, which the colour-blind can tell apart; lines differ by dashes and markers as well."""
LINES = {"MM": (RED, "--"), "CM": (GREEN, "-."), "CM, unscented": (SKY, ":"), "z = mean": (PURPLE, (0, (1, 3)))}
"""Colour and dashes of the estimators that have a line of their own; others are left to the tables."""


def draw_data_efficiency(found: Mapping[str, Mapping[str, DataEfficiency]], paper: Mapping[str, float]) -> Any:
    """D_eff in percent by estimator; `paper` has the paper's values, in percent."""
    shares = {
        name: {row: (100 * e.share, 100 * e.standard_error) for row, e in rows.items()} for name, rows in found.items()
    }
    return _dots(shares, "data efficiency D_eff, % (orange: the paper's)", (0, 105), "{:.1f}", paper)


def draw_gradient_noise(found: Mapping[str, Mapping[str, GradientNoise]]) -> Any:
    """How far the gradients of two redraws of the latents agree, by estimator."""
    values = {name: {row: (n.alignment, 0.0) for row, n in rows.items()} for name, rows in found.items()}
    return _dots(values, "cosine of the gradients of two redraws of the latents", (-0.05, 1.1), "{:.2f}", {})


def _dots(
    found: Mapping[str, Mapping[str, tuple[float, float]]],
    label: str,
    limits: tuple[float, float],
    form: str,
    paper: Mapping[str, float],
) -> Any:
    """Values with errors as dots, the estimators one below the other."""
    rows = list(next(iter(found.values())))
    figure, axes = _panels(len(found), 1, width=5.2, height=0.9 + 0.3 * len(rows), sharey=True)
    for axis, (name, values) in zip(axes[0], found.items(), strict=True):
        for place, row in enumerate(rows):
            value, error = values[row]
            sampled = row.startswith("MC")
            colour = GREY if "common" in row else BLUE if sampled else RED
            axis.plot([limits[0], value], [place, place], color=colour, alpha=0.35, linewidth=1.5, zorder=1)
            axis.errorbar(value, place, xerr=2 * error, fmt="o" if sampled else "D", color=colour, capsize=3)
            left = value > limits[0] + 0.8 * (limits[1] - limits[0])
            axis.annotate(
                form.format(value),
                (value + (-2 if left else 2) * error, place),
                xytext=(-7 if left else 7, 0),
                textcoords="offset points",
                ha="right" if left else "left",
                va="center",
                fontsize=8,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
            )
            if row in paper:
                axis.plot(paper[row], place, marker="|", markersize=12, markeredgewidth=2, color=ORANGE, zorder=3)
        axis.set_yticks(range(len(rows)), rows)
        axis.set_ylim(len(rows) - 0.5, -0.5)
        axis.set_xlim(*limits)
        axis.set_xlabel(label)
        _title(axis, name)
    return figure


def draw_kl_scan(found: Mapping[str, KlScan]) -> Any:
    """Above, with latents independent of the acting one; below, with the acting latent among them, on a log scale."""
    figure, axes = _panels(len(found), 2, width=5.2, height=3.6)
    for column, (name, scan) in enumerate(found.items()):
        above, below = axes[0][column], axes[1][column]
        counts = [point.num_samples for point in scan.points]
        for axis in (above, below):
            reference = scan.reference
            low, high = (reference.value + sign * 2 * reference.standard_error for sign in (-1, 1))
            axis.axhspan(max(low, 1e-9), high, color=GREY, alpha=0.25, linewidth=0)
            label = f"reference, N = {scan.reference_samples} (± 2 s.e.)"
            axis.axhline(reference.value, color=BLACK, linewidth=1.2, label=label)
            for estimator, (colour, dashes) in LINES.items():
                if estimator in scan.closed_form and estimator != "z = mean":
                    value = scan.closed_form[estimator].value
                    axis.axhline(value, color=colour, linestyle=dashes, label=f"{estimator}, closed form")
            _curve(axis, counts, [point.value for point in scan.points], BLUE, "o", "MC, independent latents")
            axis.set_xscale("log")
            axis.set_xticks([1, 2, 5, 10, 20, 50, 100], ["1", "2", "5", "10", "20", "50", "100"])
            axis.set_xlabel("latent samples N")
            axis.set_ylabel("KL(old ‖ new), nats")
        if all(point.value.value > 0 for point in scan.points):  # a bias may be larger than the KL, and downwards
            above.set_ylim(bottom=0)
        _curve(below, counts, [p.generating for p in scan.points], ORANGE, "s", "MC, acting latent among the old's")
        below.errorbar(
            1, scan.single.value, fmt="*", markersize=13, color=PURPLE, label="single components, closed form"
        )
        below.set_yscale("log")
        _title(above, name)
    figure.legend(*axes[1][0].get_legend_handles_labels(), fontsize=8, loc="outside lower center", ncols=2)
    return figure


def _curve(axis: Any, counts: Sequence[int], values: Sequence[Estimate], colour: str, marker: str, label: str) -> None:
    shown = [value.value for value in values]
    errors = [2 * value.standard_error for value in values]
    axis.errorbar(
        counts, shown, yerr=errors, color=colour, marker=marker, markersize=5, linewidth=1.4, capsize=3, label=label
    )


def draw_action_cloud(found: Mapping[str, ActionCloud], names: Sequence[str] | None = None) -> Any:
    """Sampled action means of two actions at a state, and 2σ ellipses of every distribution; one scale for all."""
    figure, axes = _panels(len(found), 1, width=4.8, height=4.6)
    reach = max(2.6 * math.sqrt(cloud.sampled.covariance[i][i]) for cloud in found.values() for i in (0, 1)) or 1.0
    for axis, (name, cloud) in zip(axes[0], found.items(), strict=True):
        axis.scatter(*zip(*cloud.points, strict=True), s=6, color=BLUE, alpha=0.35, linewidths=0, label="sampled")
        _ellipse(axis, cloud.sampled, BLACK, "-", "sampled, 2σ")
        for estimator, (colour, dashes) in LINES.items():
            if estimator in cloud.estimators and estimator != "z = mean":
                _ellipse(axis, cloud.estimators[estimator], colour, dashes, f"{estimator}, 2σ")
        labels = [names[action] if names else f"action {action}" for action in cloud.actions]
        axis.set_xlabel(f"{labels[0]} (exploration std {cloud.action_std[0]:.2f})")
        axis.set_ylabel(f"{labels[1]} (exploration std {cloud.action_std[1]:.2f})")
        axis.set_xlim(cloud.sampled.mean[0] - reach, cloud.sampled.mean[0] + reach)
        axis.set_ylim(cloud.sampled.mean[1] - reach, cloud.sampled.mean[1] + reach)
        axis.set_aspect("equal")
        axis.legend(fontsize=7, frameon=False, loc="upper left")
        _title(axis, name)
    return figure


def _ellipse(axis: Any, gaussian: PlaneGaussian, colour: str, dashes: Any, label: str) -> None:
    """Draws 2 standard deviations: the unit circle through a Cholesky factor, which exists in the limit too."""
    (a, b), (_, d) = gaussian.covariance
    first = math.sqrt(max(a, 0.0))
    second = b / first if first > 0 else 0.0
    third = math.sqrt(max(d - second**2, 0.0))
    turns = [2 * math.pi * step / 120 for step in range(121)]
    x = [gaussian.mean[0] + 2 * first * math.cos(turn) for turn in turns]
    y = [gaussian.mean[1] + 2 * (second * math.cos(turn) + third * math.sin(turn)) for turn in turns]
    axis.plot(x, y, color=colour, linestyle=dashes, linewidth=1.8, label=label)


def draw_variance_gap(found: Mapping[str, VarianceGap], names: Sequence[str] | None = None) -> Any:
    """Std of each action by the latent: sampled, and as propagated; the exploration's for comparison."""
    figure, axes = _panels(1, len(found), width=10.0, height=2.9, sharey=True)
    for row, (name, gap) in zip(axes, found.items(), strict=True):
        axis, places = row[0], range(len(gap.sampled_std))
        axis.bar(places, gap.sampled_std, color=BLUE, alpha=0.35, label=f"sampled latents ({gap.num_samples})")
        axis.step(places, gap.action_std, where="mid", color=GREY, linewidth=1.2, label="exploration")
        for (estimator, (colour, _)), marker in zip(LINES.items(), "Dov_", strict=True):
            if estimator in gap.estimators and estimator != "z = mean":
                ratio = gap.estimators[estimator].variance_ratio
                label = f"{estimator} ({ratio:.3f} of the variance)"
                axis.plot(places, gap.estimators[estimator].std, marker, color=colour, markersize=5, label=label)
        axis.set_ylabel("std of the action by the latent")
        _by_action(axis, len(gap.sampled_std), names)
        axis.legend(fontsize=7, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
        _title(axis, name)
    return figure


def draw_gaussianity(found: Mapping[str, Gaussianity], names: Sequence[str] | None = None) -> Any:
    """Share of Shapiro–Wilk tests passed, by action."""
    figure, axes = _panels(1, len(found), width=10.0, height=2.6, sharey=True)
    for row, (name, test) in zip(axes, found.items(), strict=True):
        axis, rates = row[0], [100 * rate for rate in test.pass_rate_per_action]
        axis.bar(range(len(rates)), rates, color=BLUE, alpha=0.6)
        axis.axhline(100 * (1 - test.alpha), color=BLACK, linestyle="--", linewidth=1, label="a Gaussian")
        axis.axhline(100 * test.pass_rate, color=RED, linewidth=1.2, label=f"mean, {100 * test.pass_rate:.1f} %")
        axis.set_ylabel(f"tests with p ≥ {test.alpha:g}, %")
        axis.set_ylim(0, 105)
        _by_action(axis, len(rates), names)
        axis.legend(fontsize=7, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
        _title(axis, f"{name}: {test.num_samples} latents a test, W = {test.w:.4f}, p = {test.p:.3f}")
    return figure


def draw_linearity(found: Mapping[str, Mapping[str, Linearity]], names: Sequence[str] | None = None) -> Any:
    """R² by action; the paper's thresholds are dashed."""
    figure, axes = _panels(1, len(found), width=10.0, height=2.6, sharey=True)
    labels = {"unit": "within 2σ in all", "typical": "2σ in every latent"}
    for row, (name, lines) in zip(axes, found.items(), strict=True):
        axis = row[0]
        for (radius, line), (colour, marker) in zip(lines.items(), ((BLUE, "o"), (ORANGE, "s")), strict=True):
            label = f"{labels.get(radius, radius)}: mean {line.r_squared:.3f}"
            axis.plot(range(len(line.per_action)), line.per_action, marker, color=colour, label=label)
        for threshold, colour in ((0.95, GREEN), (0.80, RED)):
            axis.axhline(threshold, color=colour, linestyle="--", linewidth=1)
        axis.set_ylabel("R² of a line")
        axis.set_ylim(min(0.7, *(min(line.per_action) - 0.05 for line in lines.values())), 1.02)
        _by_action(axis, len(next(iter(lines.values())).per_action), names)
        axis.legend(fontsize=7, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
        _title(axis, name)
    return figure


def draw_correlation(found: Mapping[str, Correlation], estimator: str = "CM") -> Any:
    """Correlation matrices at one state: sampled, and below as `estimator` has them."""
    shown = all(estimator in c.estimators for c in found.values())
    figure, axes = _panels(len(found), 2 if shown else 1, width=4.4, height=4.0)
    image = None
    for column, (name, one) in enumerate(found.items()):
        matrices = [("sampled latents", one.sampled)]
        if shown:
            matrices.append((f"{estimator}, error {one.error[estimator]:.3f}", one.estimators[estimator]))
        for row, (label, matrix) in enumerate(matrices):
            axis = axes[row][column]
            image = axis.imshow(matrix, cmap="RdBu_r", vmin=-1, vmax=1)
            axis.grid(visible=False)
            axis.set_xlabel("action")
            axis.set_ylabel("action")
            _title(axis, f"{name}\n{label}" if row == 0 else label)
    figure.colorbar(image, ax=axes, shrink=0.6, label="correlation of the action means")
    return figure


def draw_noise_scaling(found: Mapping[str, NoiseScaling]) -> Any:
    """The gradient's noise against N and the two stds, and the paper's law through the points where it can hold."""
    figure, axes = _panels(3, len(found), width=3.9, height=3.3)
    quantities = {
        "num_samples": "latent samples N (latent std × {shrink:.2g})",
        "latent_std": "factor on the latent std (N = 1)",
        "action_std": "factor on the exploration std (N = 1)",
    }
    for row, (name, scaling) in zip(axes, found.items(), strict=True):
        for axis, (quantity, label) in zip(row, quantities.items(), strict=True):
            for part, colour, marker in (("parameters", BLUE, "o"), ("action_mean", ORANGE, "s")):
                law: PowerLaw = getattr(getattr(scaling, part), quantity)
                _power_law(axis, law, colour, marker, part.replace("_", " "))
            axis.set_xscale("log")
            axis.set_yscale("log")
            if quantity == "num_samples":
                counts = [int(count) for count in scaling.parameters.num_samples.quantity]
                axis.set_xticks(counts, map(str, counts))
                axis.minorticks_off()
            axis.set_xlabel(label.format(shrink=scaling.shrink))
            axis.legend(fontsize=7, frameon=False)
        row[0].set_ylabel("gradient noise (1 at the first fitted point)")
        _title(row[0], name)
    return figure


def _power_law(axis: Any, law: PowerLaw, colour: str, marker: str, name: str) -> None:
    """All points, those in the fit filled, in units of the first of these; the law as a line through them."""
    fitted = [i for i, inside in enumerate(law.in_range) if inside and law.noise[i] > 0]
    if not fitted:
        return
    unit = law.noise[fitted[0]]
    noise = [value / unit for value in law.noise]
    above = [2 * error / unit for error in law.standard_error]
    below = [min(error, 0.8 * value) for error, value in zip(above, noise, strict=True)]  # a log scale has no 0
    axis.errorbar(law.quantity, noise, yerr=[below, above], fmt="none", color=colour, alpha=0.5, capsize=2)
    axis.plot(law.quantity, noise, marker, color=colour, markerfacecolor="white")
    axis.plot(
        [law.quantity[i] for i in fitted],
        [noise[i] for i in fitted],
        marker,
        color=colour,
        label=f"{name}: exponent {law.exponent:.2f}",
    )
    if marker == "o":
        middle = fitted[len(fitted) // 2]
        line = [noise[middle] * (x / law.quantity[middle]) ** law.predicted for x in law.quantity]
        axis.plot(law.quantity, line, color=BLACK, linewidth=1, linestyle="--", label=f"law: {law.predicted:g}")


def _by_action(axis: Any, count: int, names: Sequence[str] | None) -> None:
    if names:
        axis.set_xticks(range(count), names, rotation=60, ha="right", fontsize=7)
    else:
        axis.set_xlabel("action")
    axis.set_xlim(-0.7, count - 0.3)


def _panels(columns: int, rows: int, *, width: float, height: float, sharey: bool = False) -> tuple[Any, Any]:
    """A figure, and its axes [rows][columns]."""
    from matplotlib.figure import Figure  # noqa: PLC0415  optional, and slow to import

    figure = Figure(figsize=(width * columns, height * rows), layout="constrained", dpi=160)
    axes = figure.subplots(rows, columns, squeeze=False, sharey=sharey)
    for axis in axes.flat:
        axis.grid(alpha=0.25, linewidth=0.6)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _title(axis: Any, text: str) -> None:
    axis.set_title(text, fontsize=9, loc="left")
