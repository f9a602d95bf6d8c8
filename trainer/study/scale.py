"""`p3 study scale`: memory and least time of a PPO update at the paper's size on an H100, counted, beside its table."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainer.algorithms.methods import parse_method
from trainer.runs.files import replace_file
from trainer.study.cost import PAPER
from trainer.study.count import Count, count_update
from trainer.study.count_settings import ScaleConfig
from trainer.study.markdown import merge, paragraph, table
from trainer.study.operators import Totals, totals
from trainer.study.versions import versions
from triton_kernels.proof.model import BYTES_PER_SECOND, FLOPS_PER_SECOND, L2_BYTES_PER_SECOND

BASE = "simple-actor-critic"
STEPS_IN_UPDATE = 20
"""Minibatches, 5 epochs of 4: so many optimiser steps."""
NVLINK_BYTES_PER_SECOND = 450e9
"""H100 SXM, one direction."""
_MIB = 2**20


@dataclass(frozen=True)
class Way:
    """An update at some number of environments: torch's operations, and our operators with products as named."""

    count: Count
    operators: Mapping[str, Totals]

    @property
    def peak(self) -> float:
        """Bytes that the update has allocated at its worst moment, inside of our operators or outside."""
        return max(self.count.peak, self.operators["ieee"].peak)

    @property
    def whole(self) -> float:
        """Those, and what is there all the time."""
        return self.count.weights + self.count.training + self.count.rollout + self.peak

    @property
    def moved(self) -> float:
        """Bytes at DRAM."""
        return self.count.moved + self.operators["ieee"].moved

    @property
    def flops(self) -> float:
        """Operations of products and convolutions."""
        return self.count.flops + self.operators["ieee"].flops

    @property
    def launches(self) -> float:
        """About as many kernels."""
        return self.count.launches + self.operators["ieee"].launches

    def seconds(self, precision: str) -> float:
        """Least, kernel by kernel."""
        rest = self.count.seconds if precision == "ieee" else self.count.seconds_tf32
        return rest + self.operators[precision].seconds


@dataclass(frozen=True)
class Scaled:
    """One method's update at some number of environments."""

    ours: Way
    """With our operators, on Triton's kernels."""
    plain: Way
    """With an estimator of plain torch, layer by layer and sample by sample; as `ours` where there is no other."""


def run(config: ScaleConfig, arguments: Sequence[str], prog: str = "p3 study scale") -> int:
    """Counts, prints and writes the tables.

    Returns:
        0; 2 for what cannot begin.
    """
    try:
        _check(config)
        counts = count_methods(config.methods, config.counted)
        if config.out is not None:
            content = {"counted": config.counted, "versions": versions(), "counts": counts}
            replace_file(config.out, (json.dumps(content, indent=2, default=Count.numbers) + "\n").encode())
        section = write_section(counts, config, shlex.join([*prog.split(), *arguments]))
        print(section)
        if config.docs is not None:
            merge(config.docs, "scale", section)
    except (ValueError, OSError) as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return 2
    return 0


def _check(config: ScaleConfig) -> None:
    for method in config.methods:
        parse_method(method)
    if BASE not in config.methods:
        raise ValueError(f"--methods: expected {BASE!r} among them, got {', '.join(config.methods)}")
    low, high = config.counted
    if not 48 <= low < high:
        raise ValueError(f"--counted: expected two numbers, 48 or more and rising, got {low} {high}")
    if config.num_envs < 1:
        raise ValueError(f"--num-envs: expected at least 1, got {config.num_envs}")
    for name, path in (("--out", config.out and config.out.parent), ("--docs", config.docs)):
        if path is not None and not path.exists():
            raise ValueError(f"{name}: no {path}")


Counts = Mapping[str, Mapping[str, Sequence[Count]]]
"""By method, then "ours" and "plain", at the two numbers of environments."""


def count_methods(methods: Sequence[str], counted: tuple[int, int]) -> dict[str, dict[str, list[Count]]]:
    """Runs and counts the updates, one after the other."""
    counts: dict[str, dict[str, list[Count]]] = {}
    for method in methods:
        print(f"counting {method} ...", file=sys.stderr, flush=True)
        counts[method] = {"ours": [count_update(method, num_envs, None) for num_envs in counted]}
        if parse_method(method).estimator.operators:
            counts[method]["plain"] = [count_update(method, num_envs, "reference") for num_envs in counted]
    return counts


def scaled(counts: Counts, method: str, counted: tuple[int, int], num_envs: float) -> Scaled:
    """The method's counts at `num_envs`."""
    found = {}
    for kind, (low, high) in counts[method].items():
        count = low.at(high, counted, num_envs)
        found[kind] = Way(count, {precision: totals(count.calls, precision) for precision in ("ieee", "tf32")})
    return Scaled(found["ours"], found.get("plain", found["ours"]))


def memory_table(rows: Mapping[str, Scaled]) -> str:
    """MiB by method, and the paper's MB."""
    header = ["method", "saved, plain", "saved, ours", "peak, plain", "peak, ours", "whole, plain", "whole, ours"]
    header += ["above simple, plain", "above simple, ours", "above simple, paper", "paper, MB"]
    base, paper_base = rows[BASE].ours.whole, PAPER[BASE][1]
    lines = []
    for method, row in rows.items():
        paper, ways = PAPER.get(method), (row.plain, row.ours)
        cells = [way.count.saved for way in ways] + [way.peak for way in ways] + [way.whole for way in ways]
        cells += [way.whole - base for way in ways]
        texts = [f"{cell / _MIB:.0f}" for cell in cells]
        texts += ["–", "–"] if paper is None else [f"{paper[1] - paper_base:.0f}", f"{paper[1]:.0f}"]
        lines.append([f"`{method}`", *texts])
    return table(header, lines)


def time_table(rows: Mapping[str, Scaled]) -> str:
    """Work of an update and its least time by method, and the paper's seconds."""
    header = ["method", "TFLOP, plain", "TFLOP, ours", "GB moved, plain", "GB moved, ours", "kernels, plain"]
    header += ["kernels, ours", "ms, plain", "ms, ours", "ms, plain, TF32", "ms, ours, TF32", "paper, ms"]
    lines = []
    for method, row in rows.items():
        paper, ways = PAPER.get(method), (row.plain, row.ours)
        cells = [f"{way.flops / 1e12:.1f}" for way in ways] + [f"{way.moved / 1e9:.0f}" for way in ways]
        cells += [f"{way.launches:.0f}" for way in ways]
        cells += [f"{1e3 * way.seconds(precision):.0f}" for precision in ("ieee", "tf32") for way in ways]
        lines.append([f"`{method}`", *cells, "–" if paper is None else f"{1e3 * paper[0]:.0f}"])
    return table(header, lines)


def growth_table(counts: Counts, config: ScaleConfig, environments: Sequence[int] = (1024, 4096, 16384)) -> str:
    """GiB at the worst moment, by method and number of environments."""
    header = ["method", *(f"{number}, {kind}" for number in environments for kind in ("plain", "ours"))]
    lines = []
    for method in counts:
        cells = []
        for number in environments:
            row = scaled(counts, method, config.counted, number)
            cells += [f"{way.whole / 2**30:.1f}" for way in (row.plain, row.ours)]
        lines.append([f"`{method}`", *cells])
    return table(header, lines)


def ranks_table(counts: Counts, config: ScaleConfig, method: str, ranks: Sequence[int] = (1, 2, 4, 8)) -> str:
    """What one of so many ranks has, and what they say to each other."""
    header = ["ranks", "environments each", "MiB each, ours", "ms, ours", "MB all-reduced a step", "ms all-reduced"]
    lines = []
    for number in ranks:
        ours = scaled(counts, method, config.counted, config.num_envs / number).ours
        message = ours.count.weights  # a gradient as large as each weight, the statistics apart
        seconds = STEPS_IN_UPDATE * 2 * (number - 1) / number * message / NVLINK_BYTES_PER_SECOND
        cells = [f"{config.num_envs // number}", f"{ours.whole / _MIB:.0f}"]
        cells += [f"{1e3 * ours.seconds('ieee'):.0f}", f"{message / 1e6:.1f}", f"{1e3 * seconds:.2f}"]
        lines.append([str(number), *cells])
    return table(header, lines)


def _per_sample(rows: Mapping[str, Scaled]) -> str:
    """How the update's peak grows with N, from the fewest and the most samples that were counted."""
    sampled = sorted((int(name[3:-1]), row) for name, row in rows.items() if name.startswith("mc("))
    if len(sampled) < 2:
        return ""
    (few, first), (many, last) = sampled[0], sampled[-1]
    growth = {
        "plain torch": (last.plain.peak - first.plain.peak) / (many - few) / _MIB,
        "our operators": (last.ours.peak - first.ours.peak) / (many - few) / _MIB,
    }
    text = ", ".join(f"{value:.0f} MiB with {name}" for name, value in growth.items())
    return f"From N = {few} to {many} each sample adds to the peak: {text}. The paper's table: {_paper_slope():.0f} MB."


def _paper_slope() -> float:
    return (PAPER["mc(50)"][1] - PAPER["mc(5)"][1]) / 45


def write_section(counts: Counts, config: ScaleConfig, command: str) -> str:
    """Writes the section as Markdown."""
    rows = {method: scaled(counts, method, config.counted, config.num_envs) for method in counts}
    made_with = ", ".join(f"{name} {version}" for name, version in versions().items())
    low, high = config.counted
    fp32, tf32 = (FLOPS_PER_SECOND[name] / 1e12 for name in ("ieee", "tf32"))
    about = (
        f"Counted, not measured. A real update (paper-size networks, random data of the G1's sizes, 24 steps, 4"
        f" minibatches) was run at {low} and {high} environments on a CPU the way it runs on a GPU, every operation and"
        f" every tensor saved for the backward pass counted, and the counts of torch's operations, which are linear in"
        f" the environments, taken to {config.num_envs}: minibatches of {config.num_envs * 6} samples, 5 epochs. Our"
        f" operators were called at those sizes, and every launch of Triton's kernels counted. Times are the sum over"
        f" kernels of the greatest of bytes / {BYTES_PER_SECOND / 1e12:.2f} TB/s, operations / {fp32:.0f} TFLOP/s"
        f" (TF32: {tf32:.0f}) and, in Triton's kernels, bytes of L2 / {L2_BYTES_PER_SECOND / 1e12:.1f} TB/s: a bound"
        f" without launches and instructions, not a prediction. Made with {made_with}."
    )
    memory = (
        "Memory in MiB. *saved*: tensors kept for the backward pass of a minibatch; *peak*: all that the update"
        " allocates at its worst moment, *saved* among it; *whole*: with weights, gradients, Adam, the copy of the"
        f" last good state and the stored rollout; *above simple*: more than `{BASE}`. *plain*: the estimator in plain"
        " torch, layer by layer, all samples at once; *ours*: our operators on Triton's kernels, which keep no"
        " activations of samples. What is not the estimator's is the same in both."
    )
    time = (
        "Work and least time of one update. What our operators move and compute inside is in it: a second forward pass"
        " under Monte Carlo, samples that go through DRAM between two layers. GB are those of float32 products."
    )
    parts = [
        f"```bash\n{command}\n```",
        paragraph(about),
        "## Memory",
        paragraph(memory),
        memory_table(rows),
        paragraph(_per_sample(rows)),
        "## Time",
        paragraph(time),
        time_table(rows),
        "## Growth with environments",
        paragraph("GiB at the worst moment; everything but the weights is proportional to the environments."),
        growth_table(counts, config),
    ]
    method = "mm" if "mm" in counts else next(iter(counts))
    parts += [
        "## Growth with ranks",
        paragraph(
            f"`{method}`, the same {config.num_envs} environments over ranks. A step all-reduces every gradient, by a"
            f" ring over NVLink at {NVLINK_BYTES_PER_SECOND / 1e9:.0f} GB/s, latency apart; other messages are small."
        ),
        ranks_table(counts, config, method),
    ]
    return "\n\n".join(part for part in parts if part)
