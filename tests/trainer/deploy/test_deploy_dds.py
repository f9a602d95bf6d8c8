"""`p3 deploy` against `p3 robot-sim`: real DDS between real processes, on the loopback interface.

The robot counts in ticks of its own, 500 a second. What depends on the wall clock runs at a fifth of real time.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.trainer.robot_pair import POLICY, SLOW, STAND, Pair, needs_dds
from helpers.trainer.small_runs import exported_policy

from trainer import cli
from trainer.robot_sim.server import FAULTS

pytestmark = needs_dds
TICKS = 30
"""Damping has to be there this many of the robot's ticks after a fault."""
SIM_SLOW, DEPLOY_SLOW = SLOW
PATIENT = ("--time-scale", "40")
"""For what is not about delays: where the machine itself stands still for half a second, nothing is to be damped."""
SOON = "0.2:L2+up"
"""The press that makes it stand, where nothing else is to happen on the way."""


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return exported_policy(tmp_path_factory.mktemp("policy") / "run")


@pytest.fixture
def pair(tmp_path):
    with Pair(tmp_path) as started:
        yield started


def standing(pair, policy, *robot_arguments, limits=DEPLOY_SLOW):
    """Both processes, with the motors stiff."""
    robot = pair.robot(*SIM_SLOW, "--press", SOON, *robot_arguments)
    deploy = pair.deploy(policy, *limits)
    robot.wait_for("motors are stiff")
    return robot, deploy


def test_every_fault_of_the_robot_ends_in_damping(tmp_path, policy):
    """All in one test: a pair mostly waits for its slow clock, and the next begins meanwhile."""
    with contextlib.ExitStack() as stack:
        started = {}
        for fault in FAULTS:
            (tmp_path / fault).mkdir()
            pair = stack.enter_context(Pair(tmp_path / fault))
            options = ("--fault", f"0.8:{fault}", "--stop-after-damping", 0.3, "--seconds", 6)
            started[fault] = (pair, *standing(pair, policy, *options))
        for fault, (pair, robot, deploy) in started.items():
            assert robot.finish() == 0, fault
            report = pair.report()
            assert report["ticks_to_damping"] is not None, f"{fault}: {deploy.text()}"
            assert report["ticks_to_damping"] <= TICKS, fault
            assert report["damaged_commands"] == 0, fault
            deploy.wait_for("stand -> damping: ")


def test_a_killed_controller_leaves_the_robot_in_damping(pair, policy):
    robot, deploy = standing(pair, policy, "--stop-after-damping", 0.5, "--seconds", 8)
    time.sleep(0.5)
    deploy.process.kill()
    assert robot.finish() == 0
    report = pair.report()
    assert report["ticks_to_damping"] is not None, robot.text()
    assert report["ticks_to_damping"] <= TICKS


def test_a_stopped_controller_is_damped_and_stays_so(pair, policy):
    """SIGSTOP: it hangs with the motors stiff. Woken, it hears the guardian and does not take over again."""
    robot, deploy = standing(pair, policy, "--seconds", 2.5)
    deploy.process.send_signal(signal.SIGSTOP)
    robot.wait_for("motors are damped")
    deploy.process.send_signal(signal.SIGCONT)
    deploy.wait_for("stand -> damping: ")
    assert robot.finish() == 0
    report = pair.report()
    assert report["ticks_to_damping"] <= TICKS
    assert report["damped_at"] is not None  # for good


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.sweep)])
def test_an_ended_controller_leaves_the_robot_in_damping(pair, policy, number):
    robot, deploy = standing(pair, policy, "--stop-after-damping", 0.2, "--seconds", 6)
    deploy.process.send_signal(number)
    assert deploy.finish() == 1
    assert robot.finish() == 0
    assert pair.report()["ticks_to_damping"] <= TICKS


def test_a_robot_that_is_gone_ends_in_damping(pair, policy):
    robot, deploy = standing(pair, policy)
    robot.process.kill()
    deploy.wait_for("stand -> damping: no fresh, intact state")
    # A robot that comes back is met with damping, not with the stiffness of before.
    second = pair.robot(*SIM_SLOW, "--seconds", 1)
    assert second.finish() == 0
    assert pair.report()["stiff_at"] is None
    assert pair.report()["commands"] > 10


def test_a_lost_guardian_ends_in_damping(pair, policy):
    robot, deploy = standing(pair, policy, "--stop-after-damping", 0.2, "--seconds", 6)
    children = Path(f"/proc/{deploy.process.pid}/task/{deploy.process.pid}/children").read_text().split()
    commands = {int(pid): Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children}
    guardian = next(pid for pid, command in commands.items() if b"trainer.deploy.guardian" in command)
    os.kill(guardian, signal.SIGKILL)
    assert deploy.finish() == 1
    assert robot.finish() == 0
    assert pair.report()["ticks_to_damping"] <= TICKS


def test_a_second_controller_is_refused(pair, policy):
    _, _ = standing(pair, policy)
    second = pair.start("deploy", policy, "--interface", "lo", "--log", pair.directory / "second.p3log")
    assert second.finish() == 2
    assert "another p3 deploy runs on this machine" in second.text()
    # One that does not know of the lock, as on another machine: heard on the wire.
    code = (
        "import sys, contextlib; from trainer.commands import deploy as command;"
        "command.only_controller = lambda domain: contextlib.nullcontext(); sys.exit(command.main(sys.argv[1:]))"
    )
    words = [sys.executable, "-c", code, str(policy), "--interface", "lo", "--domain", str(pair.domain), *DEPLOY_SLOW]
    words += ["--log", str(pair.directory / "third.p3log")]
    third = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert third.returncode == 2
    assert "another controller publishes rt/lowcmd" in third.stderr


def test_a_foreign_command_on_the_wire_ends_in_damping(pair, policy):
    robot, deploy = standing(pair, policy, "--stop-after-damping", 0.3, "--seconds", 6, limits=PATIENT)
    code = (
        "import sys, time; from trainer.deploy.bus import Bus; from trainer.deploy.unitree import *;"
        "from trainer.deploy.motor_commands import damping_command;"
        "writer = Bus('lo', int(sys.argv[1])).writer(LOW_COMMAND_TOPIC, message_types()[0]); time.sleep(1.0);"
        "[(writer.write(command_to_wire(damping_command(5, 1.0))), time.sleep(0.01)) for _ in range(50)]"
    )
    subprocess.run([sys.executable, "-c", code, str(pair.domain)], timeout=60, check=True)
    deploy.wait_for("stand -> damping: another process publishes rt/lowcmd")
    assert robot.finish() == 0


def test_another_robot_is_refused(pair, policy):
    pair.robot(*SIM_SLOW, "--mode-machine", 4)
    deploy = pair.deploy(policy, *DEPLOY_SLOW)
    assert deploy.finish() == 2
    assert "mode_machine 4" in deploy.text()


def test_a_dry_run_sends_nothing(pair, policy):
    robot = pair.robot(*SIM_SLOW)
    deploy = pair.deploy(policy, *DEPLOY_SLOW, "--dry-run", "--seconds", 1)
    assert deploy.finish() == 0
    assert "would send: damping" in deploy.text()
    assert "a controller is there" not in robot.text()


@pytest.mark.parametrize(
    "link",
    [
        ("--state-delay-ms", 20),
        # in `make test` a policy that walks has these, in tests/trainer/deploy/test_deploy_walk.py
        pytest.param(("--loss", 0.05), marks=pytest.mark.sweep),
        pytest.param(("--command-delay-ms", 20), marks=pytest.mark.sweep),
    ],
)
def test_a_bad_connection_is_survived(pair, policy, link):
    """The whole way to the policy, in lockstep: no fault, and no command that the robot refused."""
    robot = pair.robot("--lockstep", "--press", STAND, POLICY, "--seconds", 8, *link)
    deploy = pair.deploy(policy, *PATIENT, "--seconds", 7)
    assert deploy.finish() == 0, deploy.text()
    assert "stand -> policy: asked for" in deploy.text()
    assert robot.finish() == 0
    assert pair.report()["damaged_commands"] == 0


def test_the_map_over_dds_lets_the_policy_start(pair, policy):
    """Clouds and odometry from the robot's lidar through the map's process; without them the policy is refused."""
    robot = pair.robot("--lockstep", "--press", STAND, POLICY, "--seconds", 8, "--terrain", "stairs", "--lidar")
    deploy = pair.deploy(policy, *PATIENT, "--seconds", 7, "--map")
    assert deploy.finish() == 0, deploy.text()
    assert "stand -> policy: asked for" in deploy.text()
    assert robot.finish() == 0


def test_no_map_no_policy(pair, policy):
    pair.robot("--lockstep", "--press", STAND, POLICY, "--seconds", 8)
    deploy = pair.deploy(policy, *PATIENT, "--seconds", 7, "--map")
    assert deploy.finish() == 0, deploy.text()
    assert "nothing has come on rt/Odometry yet" in deploy.text()
    assert "-> policy" not in deploy.text()


def test_clock_jitter_is_survived(pair, policy):
    robot = pair.robot("--speed", 0.5, "--jitter-ms", 1.0, "--press", STAND, "--seconds", 3)
    deploy = pair.deploy(policy, *PATIENT, "--seconds", 2.5)
    assert deploy.finish() == 0, deploy.text()
    assert robot.finish() == 0


def test_nothing_leaves_the_loopback_interface(pair, policy):
    """Every socket that sends is bound to 127.0.0.1, and nobody joined a multicast group beyond the kernel's own."""
    groups = Path("/proc/net/igmp").read_text()
    robot, deploy = standing(pair, policy)
    assert Path("/proc/net/igmp").read_text() == groups
    for process in (robot.process.pid, deploy.process.pid):
        inodes = set()
        for link in Path(f"/proc/{process}/fd").iterdir():
            target = os.readlink(link) if link.is_symlink() else ""
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
        table = [line.split() for line in Path("/proc/net/udp").read_text().splitlines()[1:]]
        local = [columns[1] for columns in table if columns[9] in inodes]
        assert local
        # The two that only receive have DDS's fixed ports for the domain; all others send.
        base = 7400 + 250 * pair.domain
        sending = [address for address in local if not base <= int(address.split(":")[1], 16) < base + 250]
        assert sending
        assert all(address.startswith("0100007F:") for address in sending), local


def test_bad_interfaces_and_policies_are_named(tmp_path, policy, capsys):
    assert cli.main(["deploy", str(policy), "--interface", "eth77"]) == 2
    assert "--interface: there is no 'eth77' here; there are lo" in capsys.readouterr().err
    assert cli.main(["deploy", str(tmp_path / "none.onnx"), "--interface", "lo"]) == 2
    assert "no policy" in capsys.readouterr().err
    damaged = tmp_path / "damaged.onnx"
    damaged.write_bytes(policy.read_bytes()[:-100])
    assert cli.main(["deploy", str(damaged), "--interface", "lo"]) == 2
    assert "damaged" in capsys.readouterr().err
    walker = exported_policy(tmp_path / "walker", "walker-parkour")
    assert cli.main(["deploy", str(walker), "--interface", "lo"]) == 2
    assert "for the robot 'walker'" in capsys.readouterr().err
    assert cli.main(["deploy", str(policy), "--interface", "lo", "--command", "9", "0", "0"]) == 2
    assert "--command: forward 9" in capsys.readouterr().err


def test_no_robot_is_an_error(pair, policy):
    deploy = pair.deploy(policy, "--connect-seconds", 1)
    assert deploy.finish() == 2
    assert f"no rt/lowstate on 'lo' (domain {pair.domain}) in 1 s" in deploy.text()
