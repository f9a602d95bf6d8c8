"""A look at what a training has learnt: a few episodes, a sentence about them, and a strip of pictures.

It runs as a process of its own, because MuJoCo chooses its OpenGL when it is imported; what it finds is in `look.json`
and `look.png` of the run directory, where the report takes it from.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from trainer.viewer.offscreen import NoOffscreenGL, choose_gl

NUMBERS, PICTURE = "look.json", "look.png"
EPISODES, SECONDS, FRAMES = 16, 10.0, 8
_SIZE = 240, 220
"""Pixels of a picture in the strip: width and height."""
_TIME = 300
"""Seconds after which a look is given up."""


@dataclass(frozen=True)
class Look:
    """What the episodes were like."""

    checkpoint: str
    terrain: str
    episodes: int
    seconds: float
    survived: float
    """Share of episodes without a fall."""
    followed: float
    """Distance along the commands over what they asked for, of all episodes together."""
    picture: str
    """Name of the picture, or why there is none."""

    @property
    def words(self) -> str:
        """What was learnt, in a sentence or two."""
        upright, moving = self.survived >= 0.8, self.followed >= 0.5
        if upright and moving:
            verdict = "It walks"
        elif upright:
            verdict = "It stands, and hardly goes" if self.followed < 0.2 else "It stays up, and goes too slowly"
        else:
            verdict = "It goes, and falls" if moving else "It falls"
        where = "on the plane" if self.terrain == "plane" else f"on {self.terrain} at difficulty 0"
        stood = round(self.survived * self.episodes)
        return (
            f"{verdict}: in {self.episodes} episodes of {self.seconds:g} s {where} it stayed on its feet in {stood},"
            f" and went {self.followed:.0%} of the distance that it was asked for."
        )


def look(source: Path, out: Path, *, episodes: int = EPISODES, seconds: float = SECONDS, frames: int = FRAMES) -> Look:
    """Runs the episodes of a checkpoint, draws the strip, and writes both to the directory `out`.

    Raises:
        FileNotFoundError, ValueError: There is no such checkpoint, or it cannot be used.
    """
    try:
        choose_gl()  # before anything imports MuJoCo
        trouble = ""
    except NoOffscreenGL as error:
        trouble = str(error)
    from trainer.engines.mujoco.env import MujocoEnv  # noqa: PLC0415
    from trainer.evaluation.episodes import COURSES, PLANE, run_episodes, trial_task  # noqa: PLC0415
    from trainer.runs.policy import acting_in, load_candidate  # noqa: PLC0415

    candidate = load_candidate(source)
    terrain = next((name for name in COURSES if name in candidate.task.terrains), PLANE)
    task = trial_task(candidate.task, terrain, 1.0, seconds, pushes=False)
    env = MujocoEnv(task, episodes, seed=1000, difficulty=None if terrain == PLANE else 0.0, auto_reset=False)
    found = run_episodes(acting_in(candidate, task, "mean"), env, seconds)
    commanded = found.commanded.sum().item()
    if not trouble:
        from trainer.viewer.session import Session  # noqa: PLC0415

        session = Session(candidate.actor, task, difficulty=None if terrain == PLANE else 0.0, seed=1000)
        _draw(session, out / PICTURE, frames)
    result = Look(
        checkpoint=candidate.name,
        terrain=terrain,
        episodes=episodes,
        seconds=seconds,
        survived=1.0 - found.fell.float().mean().item(),
        followed=found.followed.sum().item() / commanded if commanded > 0 else 1.0,
        picture=trouble or PICTURE,
    )
    (out / NUMBERS).write_text(json.dumps(asdict(result), indent=2) + "\n", encoding="utf-8")
    return result


def read_look(run_dir: Path) -> Look | None:
    """What the last look found; None where there was none, or by another version."""
    try:
        return Look(**json.loads((run_dir / NUMBERS).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def look_in_a_process(run_dir: Path) -> str:
    """As `look`, of a run directory; returns the sentence, or one that says why there is none."""
    command = [sys.executable, "-m", __name__, str(run_dir)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIME, check=False)
    except subprocess.TimeoutExpired:
        return f"no look at the policy: it took more than {_TIME} s"
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    said = lines[-1] if lines else f"exit code {done.returncode}"
    return said if done.returncode == 0 else f"no look at the policy: {said}"


def _draw(session: object, path: Path, frames: int) -> None:
    """A strip of pictures, a third of a second apart, once the robot has begun to move."""
    import matplotlib.image  # noqa: PLC0415
    import mujoco  # noqa: PLC0415
    import numpy as np  # noqa: PLC0415

    from trainer.viewer.picture import Picture  # noqa: PLC0415
    from trainer.viewer.session import Session  # noqa: PLC0415

    assert isinstance(session, Session)
    picture, (width, height) = Picture(session.env), _SIZE
    picture.model.vis.quality.shadowsize = 1024
    renderer = mujoco.Renderer(picture.model, height, width)
    every, strip = max(1, round(0.34 / session.dt)), []
    try:
        for step in range(every * frames):
            session.step()
            if step % every == every - 1:
                picture.refresh()
                renderer.update_scene(picture.data, picture.camera)
                strip.append(renderer.render().copy())
    finally:
        renderer.close()
    matplotlib.image.imsave(path, np.concatenate(strip, 1))


if __name__ == "__main__":
    run = Path(sys.argv[1])
    print(look(run, run).words)
