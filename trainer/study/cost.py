"""`p3 study cost`: time and peak memory of one PPO update by each method, beside the paper's table.

Memory is measured in a process for each method: `python -m trainer.study.cost METHOD NUM_ENVS`.
"""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from p3kernels.bench import memory
from trainer.algorithms.methods import parse_method
from trainer.runs.files import replace_file
from trainer.study.count_settings import BASE, CostConfig
from trainer.study.markdown import merge, paragraph, table
from trainer.study.pool import python_command
from trainer.study.versions import machine, versions
from trainer.training.synthetic import fill, make_algorithm, time_updates

PAPER: dict[str, tuple[float, float]] = {
    "vae": (0.85, 13438),
    "mc(5)": (0.86, 14875),
    "mc(15)": (0.98, 18457),
    "mc(50)": (1.22, 31851),
    "mm": (0.96, 15138),
    "ae": (0.70, 13108),
    "spr": (0.60, 17541),
    "simple-actor-critic": (0.20, 13055),
}
"""The paper's seconds of policy learning a PPO epoch, and MB, on its GPU."""


@dataclass(frozen=True)
class Cost:
    """Cost of one update."""

    seconds: float
    peak_bytes: int | None
    """Above the resident memory before it; None where it cannot be measured."""


def run(config: CostConfig, arguments: Sequence[str], prog: str = "p3 study cost") -> int:
    """Measures, prints and writes the table.

    Returns:
        0; 1 if a method's memory could not be measured although this system can; 2 for what cannot begin.
    """
    try:
        _check(config)
        begin = time.monotonic()
        costs, problems = measure(config.methods, config.num_envs, config.repeats, with_memory=config.memory)
        elapsed = time.monotonic() - begin
        print(f"\n{cost_table(costs)}\n\nmeasured in {elapsed:.0f} s")
        for problem in problems:
            print(f"{prog}: {problem}", file=sys.stderr)
        if config.out is not None:
            content = {"num_envs": config.num_envs, "repeats": config.repeats, "versions": versions()}
            numbers = {method: vars(cost) for method, cost in costs.items()}
            replace_file(config.out, (json.dumps({**content, "costs": numbers}, indent=2) + "\n").encode())
        if config.docs is not None:
            command = shlex.join([*prog.split(), *arguments])
            merge(config.docs, "cost", write_section(costs, config, command, elapsed))
    except (ValueError, OSError) as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return 2
    return 1 if problems and memory.unavailable_reason() is None else 0


def _check(config: CostConfig) -> None:
    for method in config.methods:
        parse_method(method)
    if BASE not in config.methods:
        raise ValueError(f"--methods: expected {BASE!r} among them, got {', '.join(config.methods)}")
    if config.num_envs < 1 or config.repeats < 1:
        raise ValueError("--num-envs and --repeats: expected at least 1")
    if config.out is not None and not config.out.parent.is_dir():
        raise ValueError(f"--out: no directory {config.out.parent}")
    if config.docs is not None and not config.docs.is_file():
        raise ValueError(f"--docs: no page {config.docs}")


def measure(
    methods: Sequence[str], num_envs: int, repeats: int, *, with_memory: bool = True
) -> tuple[dict[str, Cost], list[str]]:
    """By method; and what could not be measured, a line each."""
    peaks: dict[str, int | None] = dict.fromkeys(methods)
    problems: list[str] = []
    reason = memory.unavailable_reason() if with_memory else None
    if reason is not None:
        problems.append(f"no memory: {reason}")
    elif with_memory:
        for method in methods:
            print(f"peak memory of {method} ...", file=sys.stderr, flush=True)
            arguments = [method, str(num_envs), str(torch.get_num_threads())]
            peaks[method], why = memory.peak_bytes_of(python_command("trainer.study.cost", arguments))
            if why:
                problems.append(f"memory of {method}: {why}")
    print(f"time of {len(methods)} methods, {repeats + 1} updates each ...", file=sys.stderr, flush=True)
    seconds = time_updates({method: make_algorithm(method, num_envs) for method in methods}, repeats)
    return {method: Cost(seconds[method], peaks[method]) for method in methods}, problems


def cost_table(costs: dict[str, Cost]) -> str:
    """In Markdown: ours, as a ratio to the VAE's, and the paper's ratio."""
    header = ["method", "seconds", "/ VAE", "paper", "peak MiB", "/ VAE", "paper (whole process)"]
    base, paper_base = costs[BASE], PAPER[BASE]
    rows = []
    for method, cost in costs.items():
        paper: Sequence[Any] = PAPER.get(method, (None, None))
        ratios = [f"{value / of:.2f}" if value else "–" for value, of in zip(paper, paper_base, strict=True)]
        peak, peak_ratio = "–", "–"
        if cost.peak_bytes is not None:
            peak = f"{cost.peak_bytes / 2**20:.0f}"
            peak_ratio = f"{cost.peak_bytes / base.peak_bytes:.2f}" if base.peak_bytes else "–"
        row = [f"`{method}`", f"{cost.seconds:.2f}", f"{cost.seconds / base.seconds:.2f}", ratios[0]]
        rows.append([*row, peak, peak_ratio, ratios[1]])
    return table(header, rows)


def write_section(costs: dict[str, Cost], config: CostConfig, command: str, elapsed: float) -> str:
    """Writes the section as Markdown."""
    rows = config.num_envs * 24
    made_with = ", ".join(f"{name} {version}" for name, version in versions().items())
    about = (
        f"One PPO update on a CPU: paper-size networks, random data of the G1's sizes, {config.num_envs} × 24 samples,"
        f" 5 epochs of 4 minibatches of {rows // 4}; the best of {config.repeats} updates, all methods in turn,"
        f" {torch.get_num_threads()} threads. Peak memory is the update's alone, above the resident memory before it,"
        f" each method in a process of its own. The paper's seconds and MB are those of its GPU with 4096 environments;"
        f" its MB are of the whole process, the simulator included, so the ratios of memory are not of the same thing."
        f" Measured in {elapsed:.0f} s with {made_with}; {machine()}."
    )
    title, commands = "## What an update costs, by method", f"```bash\n{command}\n```"
    return "\n\n".join([title, commands, paragraph(about), cost_table(costs)])


def _measure_here(method: str, num_envs: int, threads: int) -> None:
    torch.set_num_threads(threads)
    algorithm, observations = make_algorithm(method, num_envs)
    print(json.dumps({"peak_bytes": memory.peak_of(algorithm.update, lambda: fill(algorithm, observations))}))


if __name__ == "__main__":
    _measure_here(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
