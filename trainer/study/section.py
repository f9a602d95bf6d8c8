"""A planned study as Markdown: measures by arm, what the likelihoods did, the planned tests, versions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

from trainer.study.contrasts import HALF, LATENTS, LEVEL, MARGIN, Findings
from trainer.study.markdown import paragraph, table
from trainer.study.records import Record
from trainer.study.statistics import mean_std
from trainer.training.progress import format_duration

CLIPPED = "loss/clip_fraction"


def write_section(findings: Findings, figures: Sequence[str], command: str) -> str:
    """The study's section.

    Args:
        findings: Findings of the records.
        figures: Links to them, as seen from the page.
        command: The command line that made it.
    """
    plan = findings.planned.plan
    parts = [
        f"## {plan.title}",
        f"```bash\n{command}\n```",
        paragraph(_what(findings)),
        arms_table(findings),
        paragraph(_measures(findings)),
        mechanism_table(findings),
        paragraph(
            "Means over the seeds, of a branch after its switch. *Clipped* is the share of ratios outside PPO's clip"
            " range, of the first 5 iterations and of the last; KL, learning rate and Σv/σ² (the latent's action"
            " variance over the exploration's, summed over actions) are of the last 5 iterations."
        ),
        tests_table(findings),
        paragraph(_about_tests(findings)),
        *(f"![{plan.title}]({figure})" for figure in figures),
        paragraph(_made_with(findings)),
    ]
    return "\n\n".join(part for part in parts if part)


def arms_table(findings: Findings) -> str:
    """A row an arm: success at the latent's mean and sampled, in percent, mean ± std over seeds."""
    grades = [f"{difficulty:g}" for difficulty in findings.planned.size.judging.difficulties]
    spread = " / ".join(grades)
    header = ["arm", "seeds", "**success, z mean**", "**success, z sampled**", "lost by sampling"]
    header += [f"z mean at {spread}", f"z sampled at {spread}", "steps to 50 %, millions"]
    rows = []
    for arm, records in findings.records.items():
        if not records:
            continue
        cells = [
            _percent(findings, arm, lambda record: record.success("mean")),
            _percent(findings, arm, lambda record: record.success("sample")),
            _percent(findings, arm, lambda record: record.success("mean") - record.success("sample")),
        ]
        for latent in LATENTS:
            means = [mean_std(list(findings.success(arm, latent, grade).values()))[0] for grade in grades]
            cells.append(" / ".join(f"{100 * mean:.0f}" for mean in means))
        rows.append([f"`{arm}`", str(len(records)), *cells, _steps(findings, arm)])
    return table(header, rows)


def mechanism_table(findings: Findings) -> str:
    """A row an arm: what its likelihoods did."""
    header = ["arm", "clipped, first → last", "KL", "learning rate", "Σv/σ²", "D_eff", "minutes of training"]
    rows = []
    for arm, records in findings.records.items():
        if not records:
            continue
        first = _mean(findings, arm, lambda record: record.first(CLIPPED))
        last = _mean(findings, arm, lambda record: record.last(CLIPPED))
        cells = [
            f"{_number(first, '{:.2f}')} → {_number(last, '{:.2f}')}",
            _number(_mean(findings, arm, lambda record: record.last("loss/kl")), "{:.3f}"),
            _number(_mean(findings, arm, lambda record: record.last("loss/learning_rate")), "{:.1e}"),
            _number(_mean(findings, arm, lambda record: record.last("policy/latent_share")), "{:.2f}"),
            _number(100 * _mean(findings, arm, lambda record: record.last("d_eff/trained")), "{:.0f} %"),
            _number(_mean(findings, arm, lambda record: record.seconds / 60), "{:.0f}"),
        ]
        rows.append([f"`{arm}`", *cells])
    return table(header, rows)


def tests_table(findings: Findings) -> str:
    """A row a planned contrast and measure; nothing for a study without contrasts."""
    tests = findings.tests()
    if not tests:
        return ""
    header = ["contrast", "measure", "pairs", "difference, points", "95 %", "seeds above"]
    header += ["p, sign flips", "Holm", "p, equivalence", "Holm", "finding"]
    rows = []
    for test in tests:
        low, high = test.interval
        rows.append(
            [
                f"`{test.contrast.first}` − `{test.contrast.second}`",
                LATENTS[test.latent],
                str(len(test.seeds)),
                f"{100 * test.mean:+.1f}",
                f"{100 * low:+.1f} to {100 * high:+.1f}" if math.isfinite(low) else "–",
                f"{test.wins} of {len(test.seeds)}",
                *(f"{p:.3f}" for p in (test.p, test.p_holm, test.equivalence, test.equivalence_holm)),
                test.finding,
            ]
        )
    return table(header, rows)


def _what(findings: Findings) -> str:
    planned = findings.planned
    size, seeds = planned.size, ", ".join(map(str, planned.seeds))
    text = (
        f"{sum(map(len, findings.records.values()))} runs on `{size.task}`: {size.num_envs} environments,"
        f" {size.iterations} iterations, seeds {seeds}. `mm+X` continues the moment-matching run of its seed with X"
        f" from iteration {size.trunk} on; `mm` is that run continued as it was; others train from random weights."
        " The arms:"
    )
    arms = [f"`{arm.name}` is `{arm.command}`" for arm in planned.arms if findings.records[arm.name]]
    text += f" {'; '.join(arms)}."
    text += f" Not finished and left out: {', '.join(findings.unfinished)}." if findings.unfinished else ""
    text += _diverged(findings)
    return text + (f" Damaged and left out: {', '.join(findings.damaged)}." if findings.damaged else "")


def _diverged(findings: Findings) -> str:
    """Which runs gave up, and how they count."""
    told = [
        f"{arm} of seed {seed} ("
        + (f"judged at iterations {', '.join(record.judged)}" if record.judged else "counts with success 0")
        + ")"
        for arm, by_seed in findings.records.items()
        for seed, record in by_seed.items()
        if record.diverged is not None
    ]
    return f" Diverged: {', '.join(told)}." if told else ""


def _measures(findings: Findings) -> str:
    size = findings.planned.size
    judging, judged = size.judging, ", ".join(map(str, size.judged))
    return (
        f"Success is the share of {judging.episodes} episodes of {judging.seconds:g} s at each difficulty that cross"
        f" their course (stairs, gaps, stones), pushed and randomised as in training, on tiles that no training saw"
        f" (seed {judging.seed}); the mean over the checkpoints of the iterations {judged}, and over the difficulties."
        f" Mean ± standard deviation over seeds, in percent. Steps are counted to the first evaluation while training,"
        f" every {size.eval_interval} iterations with 64 episodes at difficulty 0.2 and the latent's mean, that"
        f" succeeds in {100 * HALF:.0f} %: the median, and how many seeds reached it."
    )


def _about_tests(findings: Findings) -> str:
    tests = findings.tests()
    if not tests:
        return ""
    count, planned = max(len(test.seeds) for test in tests), len(findings.planned.plan.contrasts) * len(LATENTS)
    return (
        f"Differences are paired by seed. With {count} pairs the least p of the exact two-sided sign flips is"
        f" {2 / 2**count:.4f}, of equivalence {1 / 2**count:.4f}; Holm's correction is for {planned} tests each, at"
        f" {LEVEL:g}. Equivalence is within ± {100 * MARGIN:.0f} percentage points: the larger p of two one-sided exact"
        f" sign-flip tests. Rules: [preregistration.md](preregistration.md)."
    )


def _made_with(findings: Findings) -> str:
    records = [record for by_seed in findings.records.values() for record in by_seed.values()]
    own = sum(record.seconds for record in records if record.first_iteration == 1)
    for record in records:
        trunk = findings.trunks.get(record.seed)
        if record.first_iteration > 1:
            own += record.seconds - (trunk.seconds if trunk is not None else 0.0)
    own += sum(trunk.seconds for trunk in findings.trunks.values())
    judging = sum(record.judging_seconds for record in records)
    trained = sorted({made for record in records for made in record.trained_with})
    return (
        f"Training {format_duration(own)} of one core beside other work, judging {format_duration(judging)} of"
        f" processor time. Trained with: {'; '.join(trained) or 'p3 train on its own, which records no commit'}."
    )


def _steps(findings: Findings, arm: str) -> str:
    steps = list(findings.steps_to_half(arm).values())
    reached = [value for value in steps if math.isfinite(value)]
    middle = statistics.median(steps)
    return f"{f'{middle / 1e6:.2f}' if math.isfinite(middle) else '–'} ({len(reached)} of {len(steps)})"


def _mean(findings: Findings, arm: str, of: Callable[[Record], float]) -> float:
    known = [value for value in findings.values(arm, of).values() if not math.isnan(value)]
    return mean_std(known)[0]


def _percent(findings: Findings, arm: str, of: Callable[[Record], float]) -> str:
    mean, std = mean_std(list(findings.values(arm, of).values()))
    return f"{100 * mean:.1f}" + ("" if math.isnan(std) else f" ± {100 * std:.1f}")


def _number(value: float, form: str) -> str:
    return "–" if math.isnan(value) else form.format(value)
