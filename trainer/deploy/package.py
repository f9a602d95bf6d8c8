"""The file of a policy: what is written into an ONNX file's metadata, and how it is read and believed.

ONNX has no checksum of its own: a flipped bit in a weight loads without a word. So the metadata carries the SHA-256 of
the file, taken with zeros in its place, at the end of the file where it can be found without an ONNX library.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

CONTRACT_KEY = "p3_contract"
CHECKSUM_KEY = "p3_sha256"
NO_CHECKSUM = "0" * 64
_MARK = CHECKSUM_KEY.encode() + b"\x12\x40"  # a protobuf string field (tag 2) of 64 bytes follows the key


class DamagedPolicy(ValueError):
    """The file is empty, cut off, or not what was written."""


class ForeignPolicy(ValueError):
    """The file is something else than a policy exported by `p3 export`."""


def seal(data: bytes) -> bytes:
    """The bytes of a model whose metadata has `NO_CHECKSUM` under `CHECKSUM_KEY`, with the checksum filled in."""
    at = data.rfind(_MARK + NO_CHECKSUM.encode())
    if at < 0:
        raise ValueError(f"data: expected {NO_CHECKSUM} under the metadata key {CHECKSUM_KEY}")
    start = at + len(_MARK)
    return data[:start] + hashlib.sha256(data).hexdigest().encode() + data[start + 64 :]


def read_package(path: Path) -> bytes:
    """The bytes of an exported policy, which are what was written.

    Raises:
        FileNotFoundError: There is none.
        DamagedPolicy: It is empty, cut off or damaged.
        ForeignPolicy: It was never written by `p3 export`.
    """
    if not path.exists():
        raise FileNotFoundError(f"no policy {path}")
    if not path.is_file():
        raise ForeignPolicy(f"{path}: {'a directory' if path.is_dir() else 'not a file'}, not an exported policy")
    data = path.read_bytes()
    if not data:
        raise DamagedPolicy(f"{path}: empty")
    at = data.rfind(_MARK)
    found = data[at + len(_MARK) : at + len(_MARK) + 64] if at >= 0 else b""
    if len(found) < 64:
        if b"p3kernels" in data[:200]:  # its first words name the producer
            raise DamagedPolicy(
                f"{path}: cut off or damaged: begins as an exported policy, and its checksum is missing"
            )
        raise ForeignPolicy(f"{path}: not a policy of p3 export: it carries no {CONTRACT_KEY} and no {CHECKSUM_KEY}")
    zeroed = data[: at + len(_MARK)] + NO_CHECKSUM.encode() + data[at + len(_MARK) + 64 :]
    if hashlib.sha256(zeroed).hexdigest().encode() != found:
        raise DamagedPolicy(f"{path}: damaged: its content does not have the checksum it was written with")
    return data
