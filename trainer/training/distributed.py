"""How the processes of a training find each other: gloo on the host, NCCL on GPUs.

What they then compute together is in `trainer/models/ranks.py`.
"""

from __future__ import annotations

import datetime
import os

import torch
import torch.distributed

from trainer.models.ranks import Ranks, together

PATIENCE = datetime.timedelta(minutes=5)
"""How long a rank waits for the others. A rank that died is mostly noticed at once; one that hangs, after this."""
MEETING_POINT = "P3_MEETING_POINT"
"""Variable of the environment with the URL at which the ranks of one machine meet; torchrun's has others."""


def is_launched() -> bool:
    """Whether a launcher started this process, as one rank of one or more."""
    return "WORLD_SIZE" in os.environ


def join(ranks: Ranks) -> None:
    """Lets the ranks that a launcher started compute together: by gloo on the host, by NCCL on GPUs."""
    if ranks.size == 1:
        return
    gpus = torch.cuda.device_count()
    if gpus:
        torch.cuda.set_device(ranks.local_rank % gpus)
    with together():
        torch.distributed.init_process_group(
            "cpu:gloo,cuda:nccl" if gpus else "gloo",
            os.environ.get(MEETING_POINT, "env://"),
            timeout=PATIENCE,
            rank=ranks.rank,
            world_size=ranks.size,
        )


def leave(ranks: Ranks) -> None:
    """Undoes `join`, after success: with a rank lost it might wait for that, and the process ends anyway."""
    if ranks.size > 1:
        torch.distributed.destroy_process_group()
