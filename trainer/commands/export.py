"""`p3 export`: a checkpoint as one ONNX file, compared with torch before it is written."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from trainer.config.command_line import check_writable, parse
from trainer.config.commands import ExportConfig
from trainer.export.onnx_file import OPSET, TOLERANCE, contract_path, export
from trainer.runs.policy import load_candidate


def main(arguments: Sequence[str], prog: str = "p3 export") -> int:
    """Writes the file and tells how far it is from torch."""
    config = parse(ExportConfig, arguments, prog)
    candidate = load_candidate(config.checkpoint)
    if candidate.choice:
        print(candidate.choice, file=sys.stderr)
    output = config.output or candidate.output("policy.onnx")
    check_writable(output, "--output", (".onnx",))
    if not candidate.has_contract:
        print(f"{candidate.path}: saved without a contract; takes that of {candidate.config.task}")
    largest = export(candidate, output, std=config.std)
    print(f"{candidate.path}: {candidate.config.task}, {candidate.config.method}")
    print(f"max error against torch: {largest:.2e} (allowed {TOLERANCE:.0e})")
    print(f"wrote {output} ({output.stat().st_size / 1e6:.1f} MB, opset {OPSET}) and {contract_path(output)}")
    return 0
