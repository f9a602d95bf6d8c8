"""`MetricsLog`: what is in the files after a run, a crash, a resume and a full disk."""

from __future__ import annotations

import errno
import json
import math
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
import torch
from helpers.trainer.small_runs import learned

from trainer import cli
from trainer.runs import files
from trainer.runs.files import replace_file
from trainer.runs.metrics import FILE_NAME, MetricsLog, read_metrics
from trainer.runs.sinks import WandbSettings

ROOT = Path(__file__).parents[3]
WALK = WandbSettings("p3", "walk", "walk-1", {"seed": 7})


def reject(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


def written(run_dir, iterations, *, cut_off: str = "") -> None:
    """A run without TensorBoard, and what a crash left of its last line."""
    log = MetricsLog(run_dir, tensorboard=False)
    for iteration in iterations:
        log.write(iteration, {"loss/kl": iteration / 8})
    log.close()
    with (run_dir / FILE_NAME).open("a") as file:
        file.write(cut_off)


def events(run_dir) -> dict[str, dict[int, float]]:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = accumulator.EventAccumulator(str(run_dir)).Reload()
    return {tag: {event.step: event.value for event in found.Scalars(tag)} for tag in found.Tags()["scalars"]}


class FullDisk:
    """A file that takes `room` bytes more and then fails as a full disk does: after a part of what it was given."""

    def __init__(self, file, room: int):
        self._file, self.room = file, room

    def write(self, data) -> int:
        if self.room == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        count = self._file.write(data[: self.room])
        self.room -= count
        return count

    def truncate(self, size: int) -> int:
        return self._file.truncate(size)

    def close(self) -> None:
        self._file.close()


def test_every_line_is_there_as_soon_as_it_is_written(tmp_path):
    log = MetricsLog(tmp_path / "new" / "run", tensorboard=False)
    log.write(0, {"loss/kl": 0.1, "steps/total": 24_576})
    log.write(1, {"loss/kl": torch.tensor(0.25)})
    expected = [{"iteration": 0, "loss/kl": 0.1, "steps/total": 24_576}, {"iteration": 1, "loss/kl": 0.25}]
    assert read_metrics(tmp_path / "new" / "run") == expected
    log.close()
    assert read_metrics(tmp_path / "new" / "run") == expected


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_null(value, tmp_path):
    log = MetricsLog(tmp_path, tensorboard=False)
    log.write(3, {"loss/kl": value, "loss/value": 2.0})
    log.close()
    (line,) = (tmp_path / FILE_NAME).read_text().splitlines()
    expected = {"iteration": 3, "loss/kl": None, "loss/value": 2.0}
    assert json.loads(line, parse_constant=reject) == expected
    assert read_metrics(tmp_path) == [expected]


def test_iteration_is_no_scalar(tmp_path):
    log = MetricsLog(tmp_path, tensorboard=False)
    with pytest.raises(ValueError, match="'iteration' is the name"):
        log.write(0, {"iteration": 1.0})
    log.close()
    assert read_metrics(tmp_path) == []


def test_no_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=FILE_NAME) as raised:
        read_metrics(tmp_path)
    assert str(tmp_path / FILE_NAME) in str(raised.value)


@pytest.mark.parametrize(
    "cut_off", ['{"iterat', '{"iteration": 3, "loss/kl": 0.37', '{"iteration": 3, "loss/kl": 1}\n{']
)
def test_a_last_line_that_was_cut_off_is_passed_over(cut_off, tmp_path):
    written(tmp_path, range(3), cut_off=cut_off)
    whole = cut_off.count("\n")
    assert [record["iteration"] for record in read_metrics(tmp_path)] == list(range(3 + whole))


@pytest.mark.parametrize("bad", ['{"iterat', "[1]", '{"loss/kl": 1.0}'])
def test_a_broken_line_before_the_last_is_an_error_with_its_number(bad, tmp_path):
    written(tmp_path, [0], cut_off=f'{bad}\n{{"iteration": 1}}\n')
    with pytest.raises(ValueError, match="line 2: expected a JSON object with an 'iteration'"):
        read_metrics(tmp_path)


@pytest.mark.parametrize("cut_off", ["", '{"iteration": 6, "loss/k'])
def test_resume_drops_what_came_after_the_checkpoint(cut_off, tmp_path):
    written(tmp_path, range(6), cut_off=cut_off)
    log = MetricsLog(tmp_path, tensorboard=False, resume_at=4)
    assert [record["iteration"] for record in read_metrics(tmp_path)] == [0, 1, 2, 3]
    log.write(4, {"loss/kl": 99.0})
    log.close()
    assert [record["iteration"] for record in read_metrics(tmp_path)] == [0, 1, 2, 3, 4]
    assert read_metrics(tmp_path)[3:] == [{"iteration": 3, "loss/kl": 0.375}, {"iteration": 4, "loss/kl": 99.0}]
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]


def test_resume_after_a_line_that_lost_only_its_end_keeps_both_lines(tmp_path):
    written(tmp_path, range(2), cut_off='{"iteration": 2, "loss/kl": 0.25}')
    log = MetricsLog(tmp_path, tensorboard=False, resume_at=3)
    log.write(3, {})
    log.close()
    assert [record["iteration"] for record in read_metrics(tmp_path)] == [0, 1, 2, 3]


def test_resume_without_a_file_begins_one(tmp_path):
    log = MetricsLog(tmp_path, tensorboard=False, resume_at=7)
    log.write(7, {})
    log.close()
    assert read_metrics(tmp_path) == [{"iteration": 7}]


def test_a_new_run_does_not_mix_with_an_old_one(tmp_path):
    written(tmp_path, range(2))
    with pytest.raises(FileExistsError, match="give resume_at"):
        MetricsLog(tmp_path, tensorboard=False)
    assert len(read_metrics(tmp_path)) == 2


def test_replacing_a_file_fails_whole(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_text("old")

    def fails(_):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="full"):
        replace_file(path, b"new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_costs_lines_and_one_warning(tmp_path, capsys):
    log = MetricsLog(tmp_path, tensorboard=False)
    log.write(0, {"loss/kl": 0.5})
    disk = log._lines._file = FullDisk(log._lines._file, room=10)
    log.write(1, {"loss/kl": 0.5})
    assert (tmp_path / FILE_NAME).read_text().endswith('\n{"iteratio')  # the part that still went on the disk
    log.write(2, {"loss/kl": 0.5})
    disk.room = 1000
    log.write(3, {"loss/kl": 0.5})
    log.close()
    assert read_metrics(tmp_path) == [{"iteration": 0, "loss/kl": 0.5}, {"iteration": 3, "loss/kl": 0.5}]
    warnings = capsys.readouterr().err.splitlines()
    assert len(warnings) == 1
    assert warnings[0].startswith(f"warning: cannot write {tmp_path / FILE_NAME}: {os.strerror(errno.ENOSPC)}")


def test_a_line_that_could_not_be_taken_back_is_taken_back_later(tmp_path, monkeypatch):
    log = MetricsLog(tmp_path, tensorboard=False)
    disk = log._lines._file = FullDisk(log._lines._file, room=10)

    def fails(_):
        raise OSError(errno.EIO, "no")

    log.write(0, {})
    with monkeypatch.context() as patch:
        patch.setattr(disk, "truncate", fails)
        disk.room = 1000
        log.write(1, {})
    log.write(2, {})
    log.close()
    assert read_metrics(tmp_path) == [{"iteration": 2}]


def test_a_warning_that_cannot_be_written_is_no_error_either(tmp_path, monkeypatch):
    log = MetricsLog(tmp_path, tensorboard=False)
    log._lines._file = FullDisk(log._lines._file, room=0)
    attempts = []

    class FullStream:
        def write(self, text: str) -> int:
            attempts.append(text)
            raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(sys, "stderr", FullStream())
    log.write(0, {})
    log.close()
    assert len(attempts) == 1
    assert read_metrics(tmp_path) == []


def test_tensorboard_has_the_finite_scalars_and_forgets_what_is_resumed_over(tmp_path):
    pytest.importorskip("tensorboard")
    log = MetricsLog(tmp_path)
    for iteration in range(4):
        log.write(iteration, {"loss/kl": iteration / 8, "loss/value": math.nan if iteration == 1 else 2.0})
    assert events(tmp_path)["loss/kl"] == {0: 0.0, 1: 0.125, 2: 0.25, 3: 0.375}  # before the file is closed
    log.close()
    log.close()
    assert events(tmp_path)["loss/value"] == {0: 2.0, 2: 2.0, 3: 2.0}
    log = MetricsLog(tmp_path, resume_at=2)
    log.write(2, {"loss/kl": 9.0})
    log.close()
    assert events(tmp_path)["loss/kl"] == {0: 0.0, 1: 0.125, 2: 9.0}


def test_tensorboard_on_a_full_disk_has_a_gap(tmp_path, capsys):
    """The disk takes the half of an event; what comes after the gap is read."""
    pytest.importorskip("tensorboard")
    log = MetricsLog(tmp_path)
    log.write(0, {"loss/kl": 0.5})
    disk = log._events._file._file = FullDisk(log._events._file._file, room=20)
    for iteration in (1, 2):
        log.write(iteration, {"loss/kl": 0.5})
    disk.room = 1000
    log.write(3, {"loss/kl": 0.5})
    log.close()
    assert events(tmp_path)["loss/kl"] == {0: 0.5, 3: 0.5}
    assert [record["iteration"] for record in read_metrics(tmp_path)] == [0, 1, 2, 3]
    warnings = capsys.readouterr().err.splitlines()
    assert warnings == ["warning: cannot write TensorBoard events: No space left on device; the training goes on"]


def test_tensorboard_without_room_for_its_file_is_done_without(tmp_path, monkeypatch, capsys):
    pytest.importorskip("tensorboard")

    opens = files.WholeAppends.__init__

    def fails(self, path):
        if "tfevents" in path.name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        opens(self, path)

    monkeypatch.setattr(files.WholeAppends, "__init__", fails)
    log = MetricsLog(tmp_path)
    log.write(0, {"loss/kl": 0.5})
    log.close()
    assert len(read_metrics(tmp_path)) == 1
    assert capsys.readouterr().err.startswith("warning: no TensorBoard events: No space left on device")


def test_tensorboard_reads_float32_and_many_tags(tmp_path):
    """One event of all scalars, under the names that were given."""
    pytest.importorskip("tensorboard")
    scalars = {f"reward/term {i}": i / 7 for i in range(300)}
    with MetricsLog(tmp_path) as log:
        log.write(5, scalars)
    found = events(tmp_path)
    assert {tag: found[tag][5] for tag in found} == pytest.approx(scalars, rel=1e-7)


def test_without_tensorboard_one_line_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto", None)
    log = MetricsLog(tmp_path)
    log.write(0, {"loss/kl": 1.0})
    log.write(1, {"loss/kl": 1.0})
    log.close()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: tensorboard is not installed")
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]
    assert len(read_metrics(tmp_path)) == 2


REALLY_FULL = """
import resource, sys
from pathlib import Path
from trainer.runs.metrics import MetricsLog

log = MetricsLog(Path(sys.argv[1]))
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
for iteration in range(200):
    if iteration == 3:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    if iteration == 190:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    log.write(iteration, {f"loss/{i}": 0.5 for i in range(8)})
log.close()
print("came to its end")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no resource limits")
def test_a_line_of_garbage_stops_a_resume_and_is_named(tmp_path, capsys):
    """Nothing of the run is lost: its checkpoint and its log are as they were."""
    learned(tmp_path, "mm", iterations=2)
    first, last = (tmp_path / FILE_NAME).read_bytes().splitlines(keepends=True)
    (tmp_path / FILE_NAME).write_bytes(first + b"\0\xff not a line\n" + last)
    capsys.readouterr()
    assert cli.main(["train", "--run-dir", str(tmp_path), "--resume", "--iterations", "3"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"p3 train: {tmp_path / FILE_NAME}, line 2: expected a JSON object with an 'iteration'")
    assert len(error.splitlines()) == 1
    assert (tmp_path / FILE_NAME).read_bytes().endswith(last)


def test_files_that_really_cannot_grow(tmp_path):
    """No stand-in for the disk: from the third line on the kernel refuses what goes beyond 1000 bytes of a file."""
    pytest.importorskip("tensorboard")
    command = [sys.executable, "-c", REALLY_FULL, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "came to its end\n", done.stderr
    found = [record["iteration"] for record in read_metrics(tmp_path)]
    assert found[:3] == [0, 1, 2]
    assert found[-10:] == list(range(190, 200))  # as soon as there is room
    assert len(found) < 30
    assert all(len(record) == 9 for record in read_metrics(tmp_path))
    reason = "File too large; the training goes on"
    assert done.stderr.splitlines() == [
        f"warning: cannot write TensorBoard events: {reason}",
        f"warning: cannot write {tmp_path / FILE_NAME}: {reason}",
    ]
    seen = sorted(events(tmp_path)["loss/0"])
    assert (seen[:3], seen[-10:]) == ([0, 1, 2], list(range(190, 200)))
    assert len(seen) < 30


def test_memory_does_not_grow_with_the_number_of_writes(tmp_path):
    """Kept scalars would be 100 bytes or more each; there are 16,000 of them."""
    pytest.importorskip("tensorboard")
    with MetricsLog(tmp_path) as log:

        def write(iterations: range) -> None:
            for iteration in iterations:
                log.write(iteration, {f"loss/{i}": iteration / (i + 1) for i in range(40)})

        write(range(100))  # imports, caches
        tracemalloc.start()
        try:
            write(range(100, 110))
            before, _ = tracemalloc.get_traced_memory()
            write(range(110, 510))
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert after - before < 200_000
    assert len(read_metrics(tmp_path)) == 510
