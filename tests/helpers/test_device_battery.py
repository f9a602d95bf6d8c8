"""On a machine with a GPU the batteries of both GPU backends are tests for it: `pytest -m gpu`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from helpers import forked

ROOT = Path(__file__).resolve().parents[2]
COLLECT = """
import sys, torch, pytest
torch.cuda.is_available = lambda: True
raise SystemExit(pytest.main(["--collect-only", "-q", "-m", "gpu", *sys.argv[1:]]))
"""


@pytest.mark.parametrize("folder", ["triton", "cuda"])
def test_batteries_are_collected_for_a_gpu(folder):
    pytest.importorskip("triton")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = forked.python("-c", COLLECT, f"tests/{folder}/test_mlp_moments.py", cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "test_values_and_gradients" in done.stdout
    assert "test_bfloat16_inputs" in done.stdout
