"""What a training does with memory that it has freed."""

from __future__ import annotations

import platform

import pytest
from helpers import forked

PROGRAM = """
import ctypes, resource, sys, torch
from trainer.training.memory import keep_freed_memory
torch.set_num_threads(1)
ctypes.CDLL(None).mallopt(-3, 2**20)  # M_MMAP_THRESHOLD, which would follow what was freed before
if "keep" in sys.argv:
    keep_freed_memory()
def work():
    for _ in range(10):
        [torch.ones(500, 1000) for _ in range(3)]
work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="asks glibc")
def test_freed_memory_is_taken_again_without_the_system():
    """Ten times three tensors of 2 MB, some 15,000 pages: with it none of them comes from the system a second time."""
    given_back, kept = (int(forked.python("-c", PROGRAM, *words).stdout) for words in ((), ("keep",)))
    assert given_back > 5000
    assert kept < 500
