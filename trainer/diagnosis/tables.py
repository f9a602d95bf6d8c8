"""The numbers of `p3 diagnose` as Markdown tables: what is printed, and `diagnose.md`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from p3kernels.diagnostics import Estimate, PowerLaw
from p3kernels.diagnostics.noise_scaling import SMALL
from trainer.diagnosis.numbers import Diagnosis

PAPER_EFFICIENCY = {"MC(N=1)": 64.6, "MC(N=5)": 79.3, "MC(N=15)": 89.8, "MC(N=50)": 96.5, "MM": 100.0}
Columns = Mapping[str, Diagnosis]
"""Diagnoses by the names of their checkpoints."""


def tables(found: Columns) -> list[str]:
    """The lines of all tables; a column a checkpoint."""
    first = next(iter(found.values()))
    lines: list[str] = []

    def add(title: str, rows: list[list[str]], note: str = "", *more: str) -> None:
        lines.extend(["", f"## {title}", "", *_aligned(["", *found, *more], rows)])
        if note:
            lines.extend(["", note])

    add("Checkpoint", _summary(found))
    add(
        "Data efficiency D_eff, % (± standard error)",
        _efficiency(found),
        "Share of ratios within the clipping interval where old and new policy are one and the same.",
        "paper",
    )
    add(
        "KL(old ‖ new) after one epoch's update, nats (± standard error)",
        _each(found, _kl),
        f"Reference: N = {first.kl.reference_samples}. In brackets: over the reference. `+ acting z`: the latent that"
        " acted is among the old likelihood's samples; `identical`: the same with the new policy equal to the old,"
        " where the KL is 0.",
    )
    add(
        "Action distribution: propagated / sampled variance by the latent",
        _each(found, _gap),
        "In brackets: 5 to 95 % of the states; then the error of the mean, in exploration stds.",
    )
    add("Shape of the action means over the latent", _each(found, _shape))
    add(
        "Gradient noise of the clipped surrogate: noise / signal; alignment",
        _each(found, _noise),
        "Noise: trace of the gradient's covariance over redraws of the latents. Alignment: mean cosine of two redraws.",
    )
    redraws = next(iter(first.gradient_fidelity.values())).redraws
    add(
        "Gradient fidelity of the clipped surrogate: cosine; scale; noise",
        _each(found, _fidelity),
        "Against the pathwise gradient of a known return: cosine and length along it of the mean gradient, and one"
        f" redraw's noise in its lengths; the mean over {redraws} redraws is known to noise / {redraws**0.5:.1f}. What"
        " an estimator does to a gradient, not how well it trains.",
    )
    add(
        "Gradient noise, exponents (law): in parameters; in the action's mean",
        _each(found, _scaling),
        f"Fitted where the ratio's first-order variance is at most {SMALL:g}.",
    )
    return lines[1:]


def _efficiency(found: Columns) -> list[list[str]]:
    rows = _each(found, lambda d: {name: _percent(e.share, e.standard_error) for name, e in d.data_efficiency.items()})
    paper = {name: f"{share:.1f}" for name, share in PAPER_EFFICIENCY.items()}
    return [[*row, paper.get(row[0], "")] for row in rows]


def _noise(d: Diagnosis) -> dict[str, str]:
    return {name: f"{_short(noise.ratio)}; {noise.alignment:.2f}" for name, noise in d.gradient_noise.items()}


def _fidelity(d: Diagnosis) -> dict[str, str]:
    return {name: f"{f.cosine:.2f}; {_short(f.scale)}; {_short(f.noise)}" for name, f in d.gradient_fidelity.items()}


def _summary(found: Columns) -> list[list[str]]:
    show: dict[str, Callable[[Diagnosis], str]] = {
        "trained with": lambda d: d.summary.trained_with,
        "Σv/σ² (latent / exploration variance)": lambda d: f"{d.summary.latent_share:.3g}",
        "latent std": lambda d: f"{d.summary.latent_std:.3f}",
        "exploration std": lambda d: f"{d.summary.action_std:.3f}",
        "active latents": lambda d: f"{d.summary.active_latents} of {d.summary.latents}",
        "‖J‖_F": lambda d: f"{d.summary.jacobian:.3g}",
    }
    return [[name, *(of(diagnosis) for diagnosis in found.values())] for name, of in show.items()]


def _kl(d: Diagnosis) -> dict[str, str]:
    scan = d.kl
    reference = scan.reference.value

    def over(estimate: Estimate) -> str:
        factor = f" ({_short(estimate.value / reference)}×)" if reference > 0 else ""
        return f"{_value(estimate)}{factor}"

    rows = {
        "reference": _value(scan.reference),
        "reference, half of the samples": over(scan.half_reference),
    }
    rows |= {name: over(estimate) for name, estimate in scan.closed_form.items()}
    rows |= {f"MC(N={point.num_samples})": over(point.value) for point in scan.points}
    rows |= {
        f"std of a log ratio, N={point.num_samples}, independent / common latents": (
            f"{_short(point.noise)} / {_short(point.noise_common)}"
        )
        for point in scan.points
        if point.num_samples in (1, 15)
    }
    rows |= {
        f"MC(N={p.num_samples}) + acting z": over(p.generating) for p in scan.points if p.num_samples in (1, 15, 100)
    }
    rows["MC(N=1) + acting z, identical"] = _value(scan.points[0].generating_identical)
    rows["closed form at shared noise"] = over(scan.shared)
    rows["closed form of single components"] = over(scan.single)
    rows["closed form of single components, identical"] = _value(scan.single_identical)
    rows["upper bound (actor's KL + encoder's)"] = over(scan.bound)
    return rows


def _gap(d: Diagnosis) -> dict[str, str]:
    return {
        name: f"{m.variance_ratio:.3f} ({m.ratio_low:.3f} to {m.ratio_high:.3f}), {m.mean_error:.3f}"
        for name, m in d.variance_gap.estimators.items()
    }


def _shape(d: Diagnosis) -> dict[str, str]:
    rows = {
        f"Shapiro–Wilk, {test.num_samples} samples: W, p, pass rate": (
            f"{test.w:.4f}, {test.p:.3f}, {100 * test.pass_rate:.1f} %"
        )
        for test in d.gaussianity.values()
    }
    rows["correlation off the diagonal, mean and largest absolute ρ"] = (
        f"{d.correlation.mean_absolute:.3f}, {d.correlation.largest:.3f}"
    )
    rows |= {f"error of ρ by {name}": f"{error:.3f}" for name, error in d.correlation.error.items()}
    names = {"unit": "within 2σ in all", "typical": "2σ in every latent"}
    rows |= {
        f"linearity R², {names[radius]} (5 % quantile)": f"{line.r_squared:.4f} ({line.worst:.3f})"
        for radius, line in d.linearity.items()
    }
    return rows


def _scaling(d: Diagnosis) -> dict[str, str]:
    def pair(name: str) -> str:
        laws: list[PowerLaw] = [getattr(d.noise_scaling.parameters, name), getattr(d.noise_scaling.action_mean, name)]
        return "; ".join(map(_exponent, laws))

    return {
        "N (-1)": pair("num_samples"),
        "latent std (2)": pair("latent_std"),
        "exploration std (-4)": pair("action_std"),
        "‖J‖_F, state by state (2)": f"–; {_exponent(d.noise_scaling.jacobian)}",
        "σ_vae²‖J‖²/σ_act² of the policy as it is": f"{d.noise_scaling.ratio_variance:.3g}",
    }


def _exponent(law: PowerLaw) -> str:
    if math.isnan(law.exponent):
        return "–"
    return f"{law.exponent:.2f}" + ("" if math.isnan(law.exponent_error) else f" ± {law.exponent_error:.2f}")


def _each(found: Columns, rows: Callable[[Diagnosis], dict[str, str]]) -> list[list[str]]:
    columns = [rows(diagnosis) for diagnosis in found.values()]
    return [[name, *(column.get(name, "") for column in columns)] for name in columns[0]]


def _percent(share: float, error: float) -> str:
    return f"{100 * share:.1f} ± {100 * error:.1f}"


def _value(estimate: Estimate) -> str:
    return f"{_short(estimate.value)} ± {_short(estimate.standard_error)}"


def _short(value: float) -> str:
    if math.isnan(value):
        return "–"
    return f"{value:.3g}" if 1e-3 <= abs(value) < 1e4 or value == 0 else f"{value:.1e}"


def _aligned(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table that is also one in a terminal."""
    every = [head, *rows]
    widths = [max(len(row[column]) for row in every if column < len(row)) for column in range(len(head))]

    def line(row: Sequence[str]) -> str:
        cells = [*row, *[""] * (len(head) - len(row))]
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"

    return [line(head), "|" + "|".join("-" * (width + 2) for width in widths) + "|", *map(line, rows)]
