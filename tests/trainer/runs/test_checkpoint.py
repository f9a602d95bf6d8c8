"""Checkpoints: what is there after a full disk, damage or a crash, and what is refused."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import pickle
import random
import re
import resource
import stat
import zipfile
from pathlib import Path

import pytest
import torch

from trainer.runs.checkpoint import (
    FORMAT,
    KEYS,
    VERSION,
    DamagedCheckpoint,
    ForeignCheckpoint,
    checkpoint_path,
    latest_checkpoint,
    load_checkpoint,
    newest_readable,
    prune_checkpoints,
    save_checkpoint,
)


def content(iteration=1, size=200, **others):
    return {
        "task": "walker",
        "method": "mm",
        "algorithm": {"weight": torch.arange(float(size)), "groups": [{"lr": 1e-3, "betas": (0.9, 0.999)}]},
        "environment": {"level": torch.arange(7), "up": torch.tensor([True, False])},
        "torch_rng": torch.get_rng_state()[:64].clone(),
        "iter": iteration,
        "totals": {"steps": 128, "seconds": 1.5, "broken": 0},
        "switched_at": None,
        "trouble": 0,
        "finished": {"reward": [1.0, -2.5], "length": []},
        **others,
    }


def saved(run_dir, iteration=1, **others):
    path = checkpoint_path(run_dir, iteration)
    save_checkpoint(path, content(iteration, **others))
    return path


def torch_bytes(value, **options):
    buffer = io.BytesIO()
    torch.save(value, buffer, **options)
    return buffer.getvalue()


def same(ours, theirs):
    if type(ours) is not type(theirs):
        return False
    if isinstance(ours, dict):
        return ours.keys() == theirs.keys() and all(same(ours[key], theirs[key]) for key in ours)
    if isinstance(ours, list | tuple):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    if isinstance(ours, torch.Tensor):
        return ours.dtype == theirs.dtype and torch.equal(ours, theirs)
    return ours == theirs


def refusal(path, data=None, kind=ValueError, task=None):
    """Why `data`, written to `path`, is refused."""
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(kind) as caught:
        load_checkpoint(path, task)
    assert caught.type is kind
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message.removeprefix(f"{path}: ")


@contextlib.contextmanager
def largest_file(size):
    """The disk is full for every file of more than `size` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def test_what_is_loaded_is_what_was_saved(tmp_path):
    path = saved(tmp_path, extra=[None, "text", 2**70])
    assert same(load_checkpoint(path), {"format": FORMAT, "version": VERSION, **content(extra=[None, "text", 2**70])})
    assert same(load_checkpoint(path, "walker"), torch.load(path, weights_only=True))
    assert names(tmp_path) == ["model_1.pt"]


def test_a_full_disk_leaves_the_older_checkpoints_and_nothing_else(tmp_path):
    older, again = saved(tmp_path, 1), saved(tmp_path, 2)
    before = again.read_bytes()
    with largest_file(len(before) // 2):
        for path in (again, checkpoint_path(tmp_path, 3)):
            with pytest.raises(OSError, match=re.escape(str(path))) as caught:
                save_checkpoint(path, content(9))
            assert caught.value.errno == errno.EFBIG
    assert names(tmp_path) == ["model_1.pt", "model_2.pt"]
    assert again.read_bytes() == before
    assert load_checkpoint(older)["iter"] == 1
    assert load_checkpoint(saved(tmp_path, 3))["iter"] == 3


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_failing_disk_leaves_the_older_checkpoint(tmp_path, monkeypatch, call):
    path = saved(tmp_path, 1)

    def fail(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(*((os, "fsync") if call == "fsync" else (Path, "replace")), fail)
        with pytest.raises(OSError, match=r"Input/output error: .*model_1\.pt"):
            save_checkpoint(path, content(2))
    assert names(tmp_path) == ["model_1.pt"]
    assert load_checkpoint(path)["iter"] == 1


def test_a_power_cut_finds_the_file_synced_before_its_name_and_the_name_after(tmp_path, monkeypatch):
    path, synced, sync = checkpoint_path(tmp_path, 1), [], os.fsync

    def note(descriptor):
        synced.append((stat.S_ISDIR(os.fstat(descriptor).st_mode), path.exists()))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    save_checkpoint(path, content())
    assert synced == [(False, False), (True, True)]


def test_what_would_not_load_again_is_not_saved(tmp_path):
    with pytest.raises(TypeError, match=r"content: pathlib\.\w+ would not load again"):
        saved(tmp_path, extra=Path("x"))
    incomplete = content()
    del incomplete["torch_rng"]
    with pytest.raises(ValueError, match="torch_rng is missing"):
        save_checkpoint(tmp_path / "model_1.pt", incomplete)
    assert names(tmp_path) == []


def test_damage_is_named(tmp_path):
    path = saved(tmp_path)
    whole = path.read_bytes()
    weight = whole.index(content()["algorithm"]["weight"].numpy().tobytes())
    flipped = bytearray(whole)
    flipped[weight + 100] ^= 1
    assert re.match(r"damaged: record '\w+/data/0' is not as written", refusal(path, flipped, DamagedCheckpoint))
    assert refusal(path, b"", DamagedCheckpoint) == "empty"
    assert refusal(path, bytes(5000), DamagedCheckpoint) == "damaged: nothing but zeros"
    for size in (1, 4, 1000, len(whole) // 2, len(whole) - 1):
        assert refusal(path, whole[:size], DamagedCheckpoint).startswith("cut off: begins as a checkpoint")
    lost = whole[: len(whole) // 2] + bytes(len(whole) - len(whole) // 2 - 22) + whole[-22:]
    assert refusal(path, lost, DamagedCheckpoint).startswith("damaged: its table of contents is broken")
    assert refusal(path, bytes(4) + whole[4:], DamagedCheckpoint).startswith("damaged: record")


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs a file that cannot be read, as Linux has")
def test_a_disk_that_does_not_give_a_file_back_is_damage(tmp_path):
    (tmp_path / "model_1.pt").symlink_to("/proc/self/mem")  # its first page is nobody's: an input/output error
    assert refusal(tmp_path / "model_1.pt", kind=DamagedCheckpoint).startswith("damaged: the disk does not give it")


def test_random_damage_is_refused_or_harmless(tmp_path):
    path = saved(tmp_path)
    whole, good, generator = path.read_bytes(), load_checkpoint(path), random.Random(20261116)
    outcomes = {"refused": 0, "the same": 0}

    def check(data, what):
        path.write_bytes(data)
        try:
            loaded = load_checkpoint(path)
        except DamagedCheckpoint:
            outcomes["refused"] += 1
        else:
            assert same(loaded, good), what
            outcomes["the same"] += 1

    for _ in range(800):
        data, position = bytearray(whole), generator.randrange(len(whole))
        data[position] ^= generator.randrange(1, 256)
        check(data, f"byte {position}: {whole[position]} -> {data[position]}")
    assert all(outcomes.values())  # a flip in the padding changes nothing; one in a record does
    outcomes["the same"] = 0
    for _ in range(200):
        size = generator.randrange(len(whole))
        check(whole[:size], f"cut to {size} bytes")
    assert outcomes["the same"] == 0


def test_a_record_marked_as_a_folder_is_read_all_the_same(tmp_path):
    path = saved(tmp_path, size=1 << 20)
    whole = bytearray(path.read_bytes())
    marked = 0
    for entry in re.finditer(rb"PK\x01\x02", bytes(whole)):
        name = entry.end() + 42
        if re.match(rb"\w+/data/0", whole[name : name + 20]):
            whole[entry.start() + 38] |= 0x10  # torch's own reader gives memory that nobody wrote
            marked += 1
    assert marked == 1
    path.write_bytes(whole)
    assert torch.equal(load_checkpoint(path)["algorithm"]["weight"], torch.arange(float(1 << 20)))


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_foreign_files_are_refused_by_what_they_are(tmp_path):
    path = tmp_path / "model_1.pt"

    def foreign(data):
        return refusal(path, data, ForeignCheckpoint)

    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("word/document.xml", "<w/>")
        file.comment = b"with a comment"
    script = io.BytesIO()
    torch.jit.save(torch.jit.script(torch.nn.ReLU()), script)
    old = torch_bytes({"a": torch.ones(2)}, _use_new_zipfile_serialization=False)
    not_ours = "a torch file, but not a checkpoint of this trainer"
    assert foreign(b"version https://git-lfs.github.com/spec/v1\n") == "not a torch file"
    assert foreign(pickle.dumps({"format": FORMAT})) == "not a torch file"
    assert foreign(archive.getvalue()) == "a zip archive, but not a torch file"
    assert foreign(old) == "a torch file from before 1.6, not a checkpoint of this trainer"
    assert foreign(script.getvalue()).startswith("holds code (a TorchScript archive)")
    assert foreign(torch_bytes(torch.ones(3))) == not_ours
    assert foreign(torch_bytes({"weight": torch.ones(3), "format": torch.ones(2)})) == not_ours
    assert foreign(torch_bytes({"actor_state_dict": {}, "iter": 3})) == f"{not_ours}: one of rsl_rl's"
    assert foreign(torch_bytes({"model_state_dict": {}, "iter": 3})) == f"{not_ours}: one of rsl_rl's"
    path.unlink()
    path.mkdir()
    assert refusal(path, kind=ForeignCheckpoint) == "a directory, not a checkpoint"
    path.rmdir()
    os.mkfifo(path)
    assert refusal(path, kind=ForeignCheckpoint) == "not a file, not a checkpoint"
    with pytest.raises(FileNotFoundError, match=r"no checkpoint .*model_7\.pt"):
        load_checkpoint(tmp_path / "model_7.pt")


class Trap:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_code_in_a_file_is_never_run(tmp_path):
    sprung = tmp_path / "sprung"
    data = torch_bytes({"format": FORMAT, "version": VERSION, **content(), "extra": Trap(sprung)})
    message = refusal(tmp_path / "model_1.pt", data, ForeignCheckpoint)
    assert message == "holds code or pickled objects (posix.mkdir), which are never run from a checkpoint"
    assert not sprung.exists()
    torch.load(tmp_path / "model_1.pt", weights_only=False)  # it would have
    assert sprung.exists()


def test_whole_checkpoints_that_do_not_fit_are_refused(tmp_path):
    path = tmp_path / "model_1.pt"

    def of(**fields):
        return refusal(path, torch_bytes({"format": FORMAT, "version": VERSION, **content(), **fields}), task="walker")

    assert of(version=3) == f"a checkpoint of a later version, 3; this trainer reads version {VERSION}"
    assert of(version=1) == f"a checkpoint of an earlier version, 1; this trainer reads version {VERSION}"
    for version in ("1", 1.0, True, None, 0):
        assert of(version=version).startswith(f"a checkpoint of unknown version {version!r}; this trainer reads")
    assert of(task="g1-flat") == "of task 'g1-flat', this run is 'walker'"
    for key in KEYS:
        fields = {name: value for name, value in content().items() if name != key}
        data = torch_bytes({"format": FORMAT, "version": VERSION, **fields})
        assert refusal(path, data) == f"a checkpoint without {key}"
    assert refusal(path, torch_bytes({"format": FORMAT})).startswith("a checkpoint of unknown version None")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_named(tmp_path):
    path = saved(tmp_path)
    path.chmod(0)
    with pytest.raises(PermissionError, match=r"model_1\.pt"):
        load_checkpoint(path)


def test_the_latest_checkpoint_is_by_number(tmp_path):
    for name in ("model_9.pt", "model_10.pt", "model_x.pt", "other_11.pt", ".model_12.pt.1.tmp"):
        (tmp_path / name).touch()
    assert latest_checkpoint(tmp_path).name == "model_10.pt"
    assert latest_checkpoint(tmp_path / "nothing") is None


def test_the_newest_readable_passes_over_what_is_lost(tmp_path):
    with pytest.raises(FileNotFoundError, match=f"^no checkpoint in {re.escape(str(tmp_path))}$"):
        newest_readable(tmp_path)
    for iteration in range(8, 13):
        saved(tmp_path, iteration)
    assert newest_readable(tmp_path, "walker")[0].name == "model_12.pt"
    checkpoint_path(tmp_path, 12).write_bytes(b"")
    checkpoint_path(tmp_path, 11).write_bytes(checkpoint_path(tmp_path, 11).read_bytes()[:999])
    checkpoint_path(tmp_path, 10).write_bytes(b"something else")
    path, loaded, refused = newest_readable(tmp_path, "walker")
    assert path.name == "model_9.pt"
    assert same(loaded, load_checkpoint(path))
    assert [re.sub(r".*/", "", line)[:18] for line in refused] == [
        "model_12.pt: empty",
        "model_11.pt: cut o",
        "model_10.pt: not a",
    ]
    for iteration in (8, 9):
        checkpoint_path(tmp_path, iteration).write_bytes(b"")
    with pytest.raises(ValueError, match=r"^no checkpoint in .* can be read: .*_12\.pt: empty; .*_8\.pt: empty$"):
        newest_readable(tmp_path)


@pytest.mark.parametrize(
    "fields", [{"version": VERSION + 1}, {"version": VERSION - 1}, {"version": "2"}, {"task": "g1-flat"}]
)
def test_a_whole_checkpoint_is_not_passed_over_for_an_older_one(tmp_path, fields):
    saved(tmp_path, 1)
    data = torch_bytes({"format": FORMAT, "version": VERSION, **content(2), **fields})
    checkpoint_path(tmp_path, 2).write_bytes(data)
    checkpoint_path(tmp_path, 3).write_bytes(b"")
    with pytest.raises(ValueError, match=r"model_2\.pt: "):
        newest_readable(tmp_path, "walker")


def test_pruning_keeps_the_newest_and_the_spared(tmp_path):
    for iteration in (1, 2, 5, 9, 10, 11):
        saved(tmp_path, iteration)
    (tmp_path / "model_x.pt").touch()
    checkpoint_path(tmp_path, 3).mkdir()  # cannot be removed as a file: stays, and stops nothing
    prune_checkpoints(tmp_path, 2, spare={5, 77})
    assert names(tmp_path) == ["model_10.pt", "model_11.pt", "model_3.pt", "model_5.pt", "model_x.pt"]
    prune_checkpoints(tmp_path, 9)
    assert len(names(tmp_path)) == 5
    with pytest.raises(ValueError, match="keep: expected at least 1, got 0"):
        prune_checkpoints(tmp_path, 0)
