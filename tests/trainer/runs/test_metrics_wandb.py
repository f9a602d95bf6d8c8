"""`MetricsLog` to Weights & Biases: by a stand-in that fails on demand, and by the real package offline."""

from __future__ import annotations

import json
import math
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from trainer.runs.metrics import FILE_NAME, MetricsLog, read_metrics
from trainer.runs.sinks import FINISH_SECONDS, WandbSettings

ROOT = Path(__file__).parents[3]
WALK = WandbSettings("p3", "walk", "walk-1", {"seed": 7})


def written(run_dir, iterations) -> None:
    """A run without anything but its lines."""
    with MetricsLog(run_dir, tensorboard=False) as log:
        for iteration in iterations:
            log.write(iteration, {"loss/kl": iteration / 8})


class FakeWandb:
    """The part of W&B that is used; `fails` names the call that raises."""

    def __init__(self, *, starting_step: int = 0, fails: str = ""):
        self.starting_step, self.fails = starting_step, fails
        self.asked: dict[str, object] = {}
        self.logged: dict[int, dict[str, float]] = {}
        self.exit_codes: list[int] = []
        self.Settings = SimpleNamespace

    def _call(self, name: str) -> None:
        if name == self.fails:
            raise RuntimeError("the service is gone")

    def init(self, **options):
        self._call("init")
        self.asked = options
        return self

    def log(self, scalars, *, step, commit):
        self._call("log")
        assert commit
        assert step not in self.logged
        self.logged[step] = scalars

    def finish(self, exit_code):
        self.exit_codes.append(exit_code)
        self._call("finish")


@pytest.fixture
def fake(monkeypatch):
    def install(**options) -> FakeWandb:
        made = FakeWandb(**options)
        monkeypatch.setitem(sys.modules, "wandb", made)
        return made

    monkeypatch.delenv("WANDB_FINISH_TIMEOUT", raising=False)
    return install


def test_wandb_gets_the_finite_scalars_under_the_runs_name(fake, tmp_path, capsys):
    service = fake()
    with MetricsLog(tmp_path, tensorboard=False, wandb=WALK) as log:
        log.write(1, {"loss/kl": torch.tensor(0.25), "loss/value": math.nan})
        log.write(2, {"loss/kl": 0.5})
    log.close()
    assert service.logged == {1: {"loss/kl": 0.25}, 2: {"loss/kl": 0.5}}
    assert service.exit_codes == [0]
    asked = {name: service.asked[name] for name in ("project", "name", "id", "config", "dir", "resume")}
    names = {"project": "p3", "name": "walk", "id": "walk-1", "config": {"seed": 7}}
    assert asked == {**names, "dir": str(tmp_path), "resume": "allow"}
    assert vars(service.asked["settings"]) == {"console": "off", "finish_timeout": FINISH_SECONDS}
    assert capsys.readouterr().err == ""


def test_the_environment_may_say_how_long_wandb_is_waited_for(fake, tmp_path, monkeypatch):
    service = fake()
    monkeypatch.setenv("WANDB_FINISH_TIMEOUT", "3")
    MetricsLog(tmp_path, tensorboard=False, wandb=WALK).close()
    assert vars(service.asked["settings"]) == {"console": "off"}


def test_what_wandb_has_it_keeps(fake, tmp_path, capsys):
    """A crash after iteration 5, a checkpoint at 3: W&B has 4 and 5 already."""
    written(tmp_path, range(1, 6))
    service = fake(starting_step=6)
    with MetricsLog(tmp_path, tensorboard=False, resume_at=4, wandb=WALK) as log:
        for iteration in (4, 5, 6, 7, 6):
            log.write(iteration, {"loss/kl": 0.5})
    assert sorted(service.logged) == [6, 7]
    assert [record["iteration"] for record in read_metrics(tmp_path)][:7] == [1, 2, 3, 4, 5, 6, 7]
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "warning: W&B's run walk-1 has iterations before 6; they are left as they are"


def test_a_wandb_that_fails_costs_one_warning(fake, tmp_path, capsys):
    service = fake(fails="log")
    with MetricsLog(tmp_path, tensorboard=False, wandb=WALK) as log:
        for iteration in range(3):
            log.write(iteration, {"loss/kl": 0.5})
    assert len(read_metrics(tmp_path)) == 3
    assert service.exit_codes == []
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "warning: no more to Weights & Biases: the service is gone; the training goes on"


def test_a_wandb_that_fails_at_the_end_is_no_error(fake, tmp_path, capsys):
    service = fake(fails="finish")
    with MetricsLog(tmp_path, tensorboard=False, wandb=WALK) as log:
        log.write(1, {"loss/kl": 0.5})
    assert service.exit_codes == [0]
    assert "did not get the end of the run: the service is gone" in capsys.readouterr().err


@pytest.mark.parametrize(("error", "code"), [(RuntimeError, 1), (KeyboardInterrupt, 0)])
def test_wandb_knows_whether_the_run_failed(error, code, fake, tmp_path):
    service = fake()

    def run() -> None:
        with MetricsLog(tmp_path, tensorboard=False, wandb=WALK):
            raise error

    with pytest.raises(error):
        run()
    assert service.exit_codes == [code]


def test_a_wandb_that_does_not_start_is_an_error_at_once(fake, tmp_path):
    fake(fails="init")
    with pytest.raises(ValueError, match=r"does not start: the service is gone \(WANDB_MODE=offline"):
        MetricsLog(tmp_path, tensorboard=False, wandb=WALK)
    MetricsLog(tmp_path, tensorboard=False).close()  # and leaves no run that would be in the way


def test_without_wandb_one_line_says_what_to_do_and_nothing_is_begun(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    written(tmp_path, range(3))
    before = (tmp_path / FILE_NAME).read_bytes()
    with pytest.raises(ValueError, match=r"run: pip install 'p3kernels\[wandb\]'"):
        MetricsLog(tmp_path, tensorboard=False, resume_at=1, wandb=WALK)
    assert (tmp_path / FILE_NAME).read_bytes() == before
    MetricsLog(tmp_path, tensorboard=False, resume_at=1).close()  # and who does not ask for it does not need it


@pytest.mark.parametrize("name", ["project", "name", "id"])
def test_a_wandb_run_needs_its_names(name):
    with pytest.raises(ValueError, match=f"{name}: expected a name"):
        WandbSettings(**{"project": "p3", "name": "walk", "id": "walk-1", name: ""})


def wandb_history(path: Path) -> dict[int, dict[str, float]]:
    """The history in a .wandb file by step: records of LevelDB's log format, each a protobuf message."""
    from wandb.proto import wandb_internal_pb2

    content, at, message, found = path.read_bytes(), 7, b"", {}
    while len(content) - at >= 7:
        rest = 32768 - at % 32768
        if rest < 7:
            at += rest
            continue
        length, kind = struct.unpack("<HB", content[at + 4 : at + 7])
        message += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # the whole of a record, or its last part
            record = wandb_internal_pb2.Record.FromString(message)
            message = b""
            if record.WhichOneof("record_type") == "history":
                items = {
                    item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item
                }
                found[int(items["_step"])] = {name: value for name, value in items.items() if name[0] != "_"}
    return found


OFFLINE = """
import sys, time
from pathlib import Path
from trainer.runs.metrics import MetricsLog
from trainer.runs.sinks import WandbSettings

settings = WandbSettings("p3", "walk", "walk-1", {"ppo": {"clip": 0.2}})
for iterations, resume_at in ((range(1, 4), None), (range(3, 5), 3)):
    with MetricsLog(Path(sys.argv[1]), tensorboard=False, resume_at=resume_at, wandb=settings) as log:
        for iteration in iterations:
            log.write(iteration, {"loss/kl": iteration / 8, "loss/value": float("nan")})
    time.sleep(1.1)  # W&B names its directories by the second
"""


def test_wandb_itself_offline(tmp_path):
    """The real package, in a process of its own: the history is on the disk, and nobody was called."""
    pytest.importorskip("wandb")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        own = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
        called = dict.fromkeys(("WANDB_BASE_URL", "HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), address)
        environment = {**own, **called, "WANDB_MODE": "offline", "WANDB_SILENT": "true"}
        command = [sys.executable, "-c", OFFLINE, str(tmp_path)]
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        with pytest.raises(BlockingIOError):
            server.accept()
    files = sorted(tmp_path.glob("wandb/offline-run-*-walk-1/run-walk-1.wandb"))
    assert [wandb_history(path) for path in files] == [
        {1: {"loss/kl": 0.125}, 2: {"loss/kl": 0.25}, 3: {"loss/kl": 0.375}},
        {3: {"loss/kl": 0.375}, 4: {"loss/kl": 0.5}},
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == [FILE_NAME, "wandb"]
