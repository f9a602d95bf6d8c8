"""The log of a deployment: read back, cut off, replayed bit for bit, drawn."""

from __future__ import annotations

import os

import numpy as np
import pytest
from helpers.trainer.robot_pair import POLICY, STAND, Pair, needs_dds
from helpers.trainer.small_runs import exported_policy

from trainer import cli
from trainer.deploy.log import Given, Kind, Recorder, Result, read_log
from trainer.deploy.machine import Mode


def test_records_come_back(tmp_path):
    path = tmp_path / "logs" / "a.p3log"
    recorder = Recorder(path, {"policy": "x"})
    given = Given((0.1, 0.2, -0.3), np.arange(187, dtype=np.float32))
    result = Result(2, np.arange(29, dtype=np.float32), np.full(29, np.nan, np.float32))
    recorder.add(Kind.STEP, 1.5, given.pack())
    recorder.add(Kind.RESULT, 1.6, result.pack())
    recorder.add(Kind.EVENT, 1.7, b"said")
    recorder.close()
    head, records = read_log(path)
    records = list(records)
    assert head["policy"] == "x"
    assert [record.kind for record in records] == [Kind.STEP, Kind.RESULT, Kind.EVENT]
    assert [record.time for record in records] == pytest.approx([1.5, 1.6, 1.7])
    back = Given.unpack(records[0].data)
    assert back.command == given.command
    assert np.array_equal(back.scan, given.scan)
    assert Result.unpack(records[1].data).pack() == result.pack()
    with pytest.raises(FileExistsError):
        Recorder(path, {})


def test_a_log_that_is_cut_off_is_read_up_to_there(tmp_path):
    path = tmp_path / "a.p3log"
    recorder = Recorder(path, {})
    for index in range(10):
        recorder.add(Kind.EVENT, float(index), b"x" * 100)
    recorder.close()
    whole = path.read_bytes()
    for cut in (1, 50, 115, 117):
        path.write_bytes(whole[:-cut])
        assert len(list(read_log(path)[1])) == (9 if cut <= 116 else 8)
    path.write_bytes(b"something else\n")
    with pytest.raises(ValueError, match="not a log of p3 deploy"):
        read_log(path)


@pytest.fixture(scope="module")
def deployed(tmp_path_factory):
    """A deployment to the policy and back, its policy and its log."""
    directory = tmp_path_factory.mktemp("deployed")
    policy = exported_policy(directory / "run", scale=5.0)
    with Pair(directory) as pair:
        robot = pair.robot("--lockstep", "--press", STAND, POLICY, "--seconds", 9, "--loss", 0.02)
        deploy = pair.deploy(policy, "--time-scale", 40, "--seconds", 8, "--command", 0.5, 0, 0)
        assert deploy.finish() in (0, 1), deploy.text()
        robot.finish()
        return policy, pair.log_path


@needs_dds
def test_a_replay_is_the_same_bit_for_bit(deployed, tmp_path, capsys):
    _, log = deployed
    arrays, figure = tmp_path / "a.npz", tmp_path / "a.png"
    assert cli.main(["replay", str(log), "--arrays", str(arrays), "--plot", str(figure)]) == 0
    said = capsys.readouterr().out
    assert " 0 different; " in said
    assert "stand -> policy: asked for" in said
    assert figure.stat().st_size > 10_000
    with np.load(arrays, allow_pickle=False) as found:
        walking = found["mode"] == Mode.POLICY.value
        assert walking.sum() > 30
        assert (found["std"][walking] > 0).all()
        assert np.allclose(found["command"][walking][0], [0.5, 0.0, 0.0])
        assert np.abs(found["wanted"][walking] - found["wanted"][walking][0]).max() > 1e-3
        assert found["scan"].shape == (len(walking), 187)


@needs_dds
def test_a_replay_sees_a_changed_byte(deployed, tmp_path, capsys):
    _, log = deployed
    changed = tmp_path / "changed.p3log"
    data = bytearray(log.read_bytes())
    records = [record for record in read_log(log)[1] if record.kind is Kind.COMMAND]
    at = bytes(data).rfind(records[-20].data)
    data[at + 300] ^= 1
    changed.write_bytes(bytes(data))
    assert cli.main(["replay", str(changed)]) == 1
    assert "first difference: command at tick" in capsys.readouterr().out


@needs_dds
def test_a_replay_wants_the_policy_of_the_log(deployed, tmp_path, capsys):
    _, log = deployed
    other = exported_policy(tmp_path / "other")
    assert cli.main(["replay", str(log), "--policy", str(other)]) == 2
    assert "not the policy of the log" in capsys.readouterr().err
    assert cli.main(["replay", os.devnull]) == 2
