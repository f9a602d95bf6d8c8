"""Checkpoints: tensors and plain values in one file, written beside its place and then moved there.

They load with `weights_only=True`: a checkpoint from elsewhere can hold data, never code. A file is checked before it
is believed: what loads is what was saved, bit by bit, and what does not load says what it is.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import pickle
import re
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch

from trainer.runs.files import replace_file

FORMAT = "p3-checkpoint"
VERSION = 2
"""Counted up whenever an older trainer could not continue from what a newer one saved, or the other way round."""
KEYS = (
    *("task", "method", "algorithm", "environment", "torch_rng"),
    *("iter", "totals", "switched_at", "trouble", "finished"),
)
"""What every checkpoint holds. All but the first ones also hold a `contract` (`trainer/tasks/contract.py`)."""

_ZIP_BEGIN = b"PK\x03\x04"
_ZIP_END, _ZIP_END_SIZE, _ZIP_COMMENT_SIZE = b"PK\x05\x06", 22, 0xFFFF
"""The last record of an archive, its size, and at most so much comment behind it."""
_LEGACY_TORCH_BEGIN = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."
"""A protocol 2 pickle of torch's old magic number, the beginning of files from before torch 1.6."""
_RSL_RL_KEYS = ("model_state_dict", "actor_state_dict", "actor_critic_state_dict", "student_state_dict")


class DamagedCheckpoint(ValueError):
    """The file is empty, cut off, not what was written, or holds weights that are no numbers: its content is lost."""


class ForeignCheckpoint(ValueError):
    """The file was never a checkpoint of this trainer."""


def checkpoint_path(run_dir: Path, iteration: int) -> Path:
    """Where the checkpoint after `iteration` iterations is."""
    return run_dir / f"model_{iteration}.pt"


def best_path(run_dir: Path) -> Path:
    """Where the best checkpoint by evaluation is, if there is one."""
    return run_dir / "best.pt"


def save_checkpoint(path: Path, content: dict[str, Any]) -> None:
    """Writes `content` so that `path` is, at any moment and after a power cut, the old file or the new one, whole.

    Args:
        path: File of the checkpoint; its directory exists.
        content: Tensors and plain values, with at least `KEYS`.

    Raises:
        OSError: It could not be written (a full disk, say); `path` is as it was, and nothing is left beside it.
        TypeError: Something in `content` would not load again.
        ValueError: Something is missing in `content`.
    """
    if missing := [key for key in KEYS if key not in content]:
        raise ValueError(f"content: expected {', '.join(KEYS)}; {', '.join(missing)} is missing")
    write_torch_file(path, {"format": FORMAT, "version": VERSION, **content})


def write_torch_file(path: Path, content: dict[str, Any]) -> None:
    """As `save_checkpoint`, of any tensors and plain values."""
    try:
        replace_file(path, _serialise(content))
        _sync_directory(path.parent)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def load_checkpoint(path: Path, task: str | None = None) -> dict[str, Any]:
    """Reads a checkpoint, of `task` where one is named.

    Raises:
        FileNotFoundError: There is none.
        OSError: It may not be read.
        DamagedCheckpoint: It is empty, cut off or damaged, or its weights are not finite.
        ForeignCheckpoint: It is something else; code in it was not run.
        ValueError: It is of another version or of another task, or lacks something.
    """
    content = read_torch_file(path)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ForeignCheckpoint(f"{path}: a torch file, but not a checkpoint of this trainer{_origin(content)}")
    version = content.get("version")
    if type(version) is not int or version < 1:  # a bool is an int to isinstance
        raise ValueError(f"{path}: a checkpoint of unknown version {version!r}; this trainer reads version {VERSION}")
    if version != VERSION:
        age = "a later" if version > VERSION else "an earlier"
        raise ValueError(f"{path}: a checkpoint of {age} version, {version}; this trainer reads version {VERSION}")
    if missing := [key for key in KEYS if key not in content]:
        raise ValueError(f"{path}: a checkpoint without {', '.join(missing)}")
    if task is not None and content["task"] != task:
        raise ValueError(f"{path}: of task {content['task']!r}, this run is {task!r}")
    check_weights(path, content["algorithm"])
    return content


def check_weights(path: Path, algorithm: Mapping[str, Any]) -> None:
    """Refuses networks that are not numbers: nothing can be judged, exported or continued with them.

    Args:
        path: The file, for the message.
        algorithm: What `P3PPO.save` gave, or a part of it.

    Raises:
        DamagedCheckpoint: Naming the first tensor that is not finite.
    """
    for network in ("actor", "critic"):
        for name, value in algorithm.get(f"{network}_state_dict", {}).items():
            if value.is_floating_point() and not torch.isfinite(value).all():
                kind = "NaN" if torch.isnan(value).any() else "an infinity"
                raise DamagedCheckpoint(f"{path}: {network}.{name} has {kind}: of a training that broke, of no use")


def read_torch_file(path: Path) -> Any:
    """What torch saved in a file of tensors and plain values, every record compared with its checksum.

    Raises:
        FileNotFoundError: There is none.
        OSError: It may not be read.
        DamagedCheckpoint: It is empty, cut off or damaged.
        ForeignCheckpoint: It is something else; code in it was not run.
    """
    return _deserialise(path, _read(path))


def checkpoint_iterations(run_dir: Path) -> list[int]:
    """Iterations after which there is a checkpoint, ascending."""
    return [iteration for iteration, _ in _checkpoints(run_dir)]


def latest_checkpoint(run_dir: Path) -> Path | None:
    """The checkpoint of the highest iteration, or None."""
    found = _checkpoints(run_dir)
    return found[-1][1] if found else None


def newest_readable(run_dir: Path, task: str | None = None) -> tuple[Path, dict[str, Any], list[str]]:
    """The checkpoint of the highest iteration that loads.

    Only what is lost or was never ours is passed over. A checkpoint of a later version or of another task is whole:
    to continue from an older one would be to throw it away.

    Returns:
        Its path, its content, and why those of higher iterations were passed over, a line each.

    Raises:
        FileNotFoundError: There is none at all.
        ValueError: There are some, and none loads; or the newest that is whole cannot be used here.
        OSError: One may not be read.
    """
    found = _checkpoints(run_dir)
    if not found:
        raise FileNotFoundError(f"no checkpoint in {run_dir}")
    refused: list[str] = []
    for _, path in reversed(found):
        try:
            return path, load_checkpoint(path, task), refused
        except (DamagedCheckpoint, ForeignCheckpoint, FileNotFoundError) as error:  # not found: pruned meanwhile
            refused.append(str(error))
    raise ValueError(f"no checkpoint in {run_dir} can be read: {'; '.join(refused)}")


def prune_checkpoints(run_dir: Path, keep: int, spare: Collection[int] = ()) -> None:
    """Removes all checkpoints but the newest. What cannot be removed stays.

    Args:
        run_dir: The run.
        keep: How many of the highest iterations stay; at least 1.
        spare: Iterations that stay whatever their age. The one just saved belongs here: a damaged file of a higher
            iteration counts as newer.
    """
    if keep < 1:
        raise ValueError(f"keep: expected at least 1, got {keep}")
    for iteration, path in _checkpoints(run_dir)[:-keep]:
        if iteration not in spare:
            with contextlib.suppress(OSError):
                path.unlink()


def _checkpoints(run_dir: Path) -> list[tuple[int, Path]]:
    """Iteration and path of each, ascending."""
    matches = ((re.fullmatch(r"model_([0-9]+)\.pt", path.name), path) for path in run_dir.glob("model_*.pt"))
    return sorted((int(match[1]), path) for match, path in matches if match)


def _serialise(content: dict[str, Any]) -> memoryview:
    """The file's bytes: in memory first, since torch's own writing to a full disk is not an OSError."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    buffer.seek(0)
    try:
        torch.load(buffer, map_location="meta", weights_only=True)  # the structure only: no tensor is read
    except pickle.UnpicklingError as error:
        raise TypeError(f"content: {_pickled(error)} would not load again; only tensors and plain values do") from error
    return buffer.getbuffer()


def _sync_directory(directory: Path) -> None:
    """Makes a rename in it last over a power cut, where the filesystem can."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # of network filesystems that cannot
            raise
    finally:
        os.close(descriptor)


def _read(path: Path) -> bytes:
    """The bytes of the file: read once, so that what was checked is what is loaded."""
    if not path.exists():
        raise FileNotFoundError(f"no checkpoint {path}")
    if not path.is_file():  # to open a pipe would wait for ever
        raise ForeignCheckpoint(f"{path}: {'a directory' if path.is_dir() else 'not a file'}, not a checkpoint")
    try:
        return path.read_bytes()
    except OSError as error:
        if error.errno == errno.EIO:
            raise DamagedCheckpoint(f"{path}: damaged: the disk does not give it back ({error.strerror})") from error
        raise OSError(error.errno, error.strerror, str(path)) from error


def _deserialise(path: Path, data: bytes) -> Any:
    """What torch saved in `data`; `path` is for the messages."""
    if not data:
        raise DamagedCheckpoint(f"{path}: empty")
    tail = data[-_ZIP_END_SIZE - _ZIP_COMMENT_SIZE :]
    begun, ended = _ZIP_BEGIN.startswith(data[:4]), _ZIP_END in tail[: 4 - _ZIP_END_SIZE]
    if not begun and not ended:
        if data.startswith(_LEGACY_TORCH_BEGIN):
            raise ForeignCheckpoint(f"{path}: a torch file from before 1.6, not a checkpoint of this trainer")
        if not any(data):  # what some filesystems leave of a file after a power cut
            raise DamagedCheckpoint(f"{path}: damaged: nothing but zeros")
        raise ForeignCheckpoint(f"{path}: not a torch file")
    if not ended:
        raise DamagedCheckpoint(f"{path}: cut off: begins as a checkpoint, and its end is missing")
    records = _records(path, data)
    if not any(name.endswith("/data.pkl") for name in records):
        raise ForeignCheckpoint(f"{path}: a zip archive, but not a torch file")
    if any(name.endswith("/constants.pkl") for name in records):
        raise ForeignCheckpoint(f"{path}: holds code (a TorchScript archive), which is never run from a checkpoint")
    try:
        return torch.load(_packed(records), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        reason = f"holds code or pickled objects ({_pickled(error)}), which are never run from a checkpoint"
        raise ForeignCheckpoint(f"{path}: {reason}") from error
    except Exception as error:  # whatever torch's reader makes of records that do not fit together
        raise DamagedCheckpoint(f"{path}: damaged: {_first_line(error)}") from error


def _records(path: Path, data: bytes) -> dict[str, bytes]:
    """The archive's records by name, each compared with its checksum, which torch's reader does not."""
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
    except Exception as error:  # whatever a wrong directory makes of zipfile: BadZipFile, UnicodeDecodeError, ...
        raise DamagedCheckpoint(f"{path}: damaged: its table of contents is broken ({_first_line(error)})") from error
    records: dict[str, bytes] = {}
    with archive:
        for info in archive.infolist():
            try:
                records[info.filename] = archive.read(info)
            except Exception as error:  # as above
                reason = f"record {info.filename!r} is not as written ({_first_line(error)})"
                raise DamagedCheckpoint(f"{path}: damaged: {reason}") from error
    return records


def _packed(records: dict[str, bytes]) -> io.BytesIO:
    """A fresh archive of the checked records, so that torch's reader sees them as the check did.

    Of a damaged directory the two readers can make different things: where the bit of a folder is set, torch's returns
    memory that nobody wrote.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, record in records.items():
            archive.writestr(zipfile.ZipInfo(name), record)
    buffer.seek(0)
    return buffer


def _origin(content: object) -> str:
    """Where a torch file that is not ours is from, as far as that shows."""
    if isinstance(content, dict) and any(key in content for key in _RSL_RL_KEYS):
        return ": one of rsl_rl's"
    return ""


def _pickled(error: pickle.UnpicklingError) -> str:
    """What torch refused to unpickle."""
    found = re.search(r"GLOBAL (\S+)", str(error)) or re.search(r"WeightsUnpickler error: ([^\n]{1,100})", str(error))
    return found[1] if found else _first_line(error)


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0][:100] if str(error) else type(error).__name__
