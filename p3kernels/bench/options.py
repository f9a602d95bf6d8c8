"""The command line of `p3 bench`: its options and their defaults.

Only the standard library is imported, nothing of this package either: `p3 bench --help` reads this file by itself, and
so needs no torch (`trainer.config.plain`).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

OPS = (
    "elu_moments",
    "relu_moments",
    "leaky_relu_moments",
    "linear_elu_moments",
    "mlp_moments",
    "mlp_covariance",
    "mixture_log_prob",
    "mlp_mixture_log_prob",
)
"""Ops that have a benchmark. `linear_moments` is two torch products on every backend: there is nothing to compare."""

BATCH, SAMPLES = (4096,), (5, 15, 50)
QUICK_BATCH, QUICK_SAMPLES, QUICK_REPEATS = (1024,), (5,), 3
REPEATS = 7
REPEATS_MANY_SAMPLES = 3
MANY_SAMPLES = 50


def _op(text: str) -> str:
    if text not in OPS:
        raise argparse.ArgumentTypeError(f"no benchmark of {text!r}; there is one of {', '.join(OPS)}")
    return text


def _count(text: str, most: int = 2**31 - 1) -> int:
    """An integer from 1 on."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected an integer >= 1, got {text!r}")
    if int(text) > most:
        raise argparse.ArgumentTypeError(f"expected at most {most}, got {text}")
    return int(text)


def _few(text: str) -> int:
    """An integer from 1 to 1024: more threads or turns are a slip of the finger."""
    return _count(text, 1024)


def _counts(text: str) -> tuple[int, ...]:
    """Integers ≥ 1 with commas between them, without repetitions."""
    try:
        return tuple(dict.fromkeys(_count(part.strip()) for part in text.split(",")))
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"expected integers >= 1 with commas between them, got {text!r}") from None


def comma(numbers: Sequence[int]) -> str:
    """The numbers with commas between them."""
    return ",".join(map(str, numbers))


def build_parser(prog: str) -> argparse.ArgumentParser:
    """The parser of `p3 bench`."""
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Times ops, forward and forward+backward, against eager torch, torch.compile and a bound (the bare "
        "GEMMs; for elementwise ops the memory traffic), on the CPU in float32. Results are compared before they are "
        "timed: exit code 1 if ours is not what the float64 reference says.",
    )
    parser.add_argument("ops", nargs="*", type=_op, metavar="OPS", help=f"which ops; all of {', '.join(OPS)} if none")
    parser.add_argument("--batch", type=_counts, metavar="B[,B]", help=f"rows (default {comma(BATCH)})")
    parser.add_argument("--samples", type=_counts, metavar="N[,N]", help=f"mixture samples (default {comma(SAMPLES)})")
    parser.add_argument("--threads", type=_few, metavar="N", help="torch's threads (default: torch's own choice)")
    parser.add_argument(
        "--repeats",
        type=_few,
        metavar="N",
        help=f"turns each contestant gets (default {REPEATS}, {REPEATS_MANY_SAMPLES} from N = {MANY_SAMPLES})",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"under a minute: batch {comma(QUICK_BATCH)}, samples {comma(QUICK_SAMPLES)}, repeats {QUICK_REPEATS}, "
        "no torch.compile, unless said otherwise",
    )
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out: it takes minutes")
    parser.add_argument("--no-memory", action="store_true", help="leave peak memory out: it takes a process each")
    parser.add_argument("--out", default="bench", metavar="DIR", help="where JSON and plots go (default bench/)")
    parser.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="cuda: one MM forward and backward of the actor on the GPU, with CUDA events (exit code 2 without one)",
    )
    parser.add_argument(
        "--roofline",
        action="store_true",
        help="with --device cuda: the least time on an H100 and eager's traffic, on paper; needs no GPU",
    )
    return parser
