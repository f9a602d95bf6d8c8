"""On a machine with a GPU the batteries of both GPU backends are tests for it: `pytest -m gpu`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COLLECT = """
import sys, torch, pytest
torch.cuda.is_available = lambda: True
raise SystemExit(pytest.main(["--collect-only", "-q", "-m", "gpu", *sys.argv[1:]]))
"""


@pytest.mark.parametrize("folder", ["triton", "cuda"])
def test_batteries_are_collected_for_a_gpu(folder):
    pytest.importorskip("triton")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-c", COLLECT, f"tests/{folder}/test_mlp_moments.py"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "test_values_and_gradients" in done.stdout
    assert "test_bfloat16_inputs" in done.stdout
