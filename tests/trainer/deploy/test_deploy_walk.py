"""The whole way with a policy that walks: stand up, walk, over DDS; in lockstep: a busy machine is no matter.

The policies come with the package; where one is not there yet, its tests are skipped.
`P3_TEST_ALL=1` (make test-all) adds 20 walks on the plane, and walks as long over bad connections.
"""

from __future__ import annotations

import pytest
from helpers.trainer.robot_pair import POLICY, STAND, Pair, needs_dds

from trainer.export.onnx_file import export
from trainer.runs.policy import load_candidate
from trainer.runs.policy_file import pretrained

pytestmark = needs_dds
SECONDS = 20.0
CROSSING = 12.0
"""Seconds from one end of a course to the other."""
END_PLATFORM, END_OF_TILE = 7.0, 8.5
"""Metres from the start of a course to the platform behind it, and to where a robot that goes on steps off the tile."""
WALKS = 20
"""Walks, of which 19 must last, for a policy that `p3 eval` sees fall in at most 5 % of episodes."""


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Name → ONNX file of a policy that the package carries; skips where it carries none."""
    directory = tmp_path_factory.mktemp("pretrained")

    def export_once(name):
        path = directory / f"{name}.onnx"
        if name not in pretrained():
            pytest.skip(f"the package carries no policy {name!r} yet")
        if not path.exists():
            export(load_candidate(name), path, std=True)
        return path

    return export_once


def walk(directory, policy, *robot_arguments, deploy_arguments=("--command", 0.5, 0, 0), seconds=SECONDS):
    """Stands up and walks; the robot's report."""
    with Pair(directory) as pair:
        end = float(POLICY.split(":")[0]) + 1.5 + seconds
        robot = pair.robot("--lockstep", "--press", STAND, POLICY, "--seconds", end, *robot_arguments)
        deploy = pair.deploy(policy, "--time-scale", 50, *deploy_arguments)
        assert robot.finish(600) == 0
        assert "stand -> policy: asked for" in deploy.text(), deploy.text()
        return pair.report(), deploy.text()


LOSS, DELAY = ("--loss", 0.05), ("--command-delay-ms", 20)


@pytest.mark.parametrize(
    ("link", "seconds"),
    [
        pytest.param(LOSS, SECONDS / 2, id="5 % lost"),
        pytest.param(DELAY, SECONDS / 2, id="20 ms later"),
        *(
            pytest.param(link, SECONDS, id=name, marks=pytest.mark.sweep)
            for name, link in (("plain", ()), ("5 % lost, longer", LOSS), ("20 ms later, longer", DELAY))
        ),
    ],
)
def test_it_walks_on_the_plane(tmp_path, exported, link, seconds):
    if "--command-delay-ms" in link and "g1-flat" in pretrained():
        trained_delay = load_candidate("g1-flat").config.task_settings["dynamics"]["action_delay"][1]
        if trained_delay < 0.02:
            pytest.skip(f"the policy 'g1-flat' was trained with delays up to {1e3 * trained_delay:g} ms")
    report, said = walk(tmp_path, exported("g1-flat"), *link, seconds=seconds)
    assert report["fell_at"] is None, said
    assert report["damaged_commands"] == 0
    assert report["walked"] >= seconds - 1.0, said
    assert report["distance"] > 3.0


def test_it_crosses_a_course_by_its_own_map(tmp_path, exported):
    course = ("--terrain", "stairs", "--difficulty", 0.1, "--lidar")
    arguments = ("--map", "--keep-heading", 0.8, "--command", 0.9, 0, 0)
    report, said = walk(tmp_path, exported("g1-parkour"), *course, deploy_arguments=arguments, seconds=CROSSING)
    assert report["distance"] > END_PLATFORM, said
    assert report["fell_at"] is None or report["distance"] > END_OF_TILE, said


@pytest.mark.sweep
def test_it_walks_twenty_times(tmp_path, exported):
    policy, lasted = exported("g1-flat"), 0
    for seed in range(WALKS):
        directory = tmp_path / str(seed)
        directory.mkdir()
        lasted += walk(directory, policy, "--seed", seed)[0]["fell_at"] is None
    assert lasted >= WALKS - 1
