"""The controls beside the scene: what the watcher wants, and what the robot does."""

from __future__ import annotations

from dataclasses import dataclass

import viser

from trainer.tasks import TaskConfig
from trainer.viewer.clock import Clock
from trainer.viewer.session import LATENTS, Session

_COMMANDS = (("forward", "m/s"), ("left", "m/s"), ("turn left", "rad/s"))


@dataclass(frozen=True)
class Restart:
    """A new episode that was asked for; None where the terrain stays as it is."""

    difficulty: float | None = None
    terrain: str | None = None


class Panel:
    """Controls in the container that is open in `gui`. The loop asks it; its handles may change at any time.

    Args:
        gui: Controls of a server.
        session: For the task, and for what is chosen at the beginning.
    """

    def __init__(self, gui: viser.GuiApi, session: Session) -> None:
        config = session.task.config
        self._restart: Restart | None = None
        self._single_step = False
        with gui.add_folder("Simulation"):
            self.pause = gui.add_checkbox("Pause", False)
            self.step = gui.add_button("Step", hint="One control step, while paused")
            self.reset = gui.add_button("Reset", hint="A new episode")
            self.latent = gui.add_dropdown(
                "Latent", LATENTS, initial_value=session.latent, hint="Act at its mean, at a sample, or explore too"
            )
            self.follow = gui.add_checkbox("Follow", True, hint="Keep the robot in the middle")
            self.robot = gui.add_checkbox("Robot", True)
            self.scan = gui.add_checkbox("Height scan", True)
        self.step.on_click(self._on_step)
        self.reset.on_click(self._on_reset)
        self._add_terrains(gui, session)
        self._add_commands(gui, config)
        with gui.add_folder("Robot"):
            self.text = gui.add_markdown("")

    def _add_terrains(self, gui: viser.GuiApi, session: Session) -> None:
        config = session.task.config
        if not config.terrains:
            return
        with gui.add_folder("Terrain"):
            self.terrain = gui.add_dropdown("Kind", config.terrains, initial_value=session.terrain)
            self.difficulty = gui.add_slider("Difficulty", 0.0, 1.0, 0.05, session.difficulty)
        self.terrain.on_update(self._on_terrain)
        self.difficulty.on_update(self._on_terrain)

    def _add_commands(self, gui: viser.GuiApi, config: TaskConfig) -> None:
        """A slider for each command that the task varies, over its range and standing still."""
        self.sliders: dict[int, viser.GuiSliderHandle[float]] = {}
        with gui.add_folder("Command"):
            self.by_hand = gui.add_checkbox("By hand", False, hint="Off: as the task draws them")
            ranges = (config.command_x, config.command_y, config.command_yaw)
            for index, ((name, unit), (low, high)) in enumerate(zip(_COMMANDS, ranges, strict=True)):
                if low == high:
                    continue
                slider = gui.add_slider(f"{name} {unit}", min(low, 0.0), max(high, 0.0), 0.05, 0.0)
                slider.on_update(self._on_slider)
                self.sliders[index] = slider

    def _on_step(self, _: viser.GuiEvent) -> None:
        self._single_step = True

    def _on_reset(self, _: viser.GuiEvent) -> None:
        self._restart = Restart()

    def _on_terrain(self, _: viser.GuiEvent) -> None:
        self._restart = Restart(float(self.difficulty.value), self.terrain.value)

    def _on_slider(self, event: viser.GuiEvent) -> None:
        if event.client_id is not None:  # a person's hand, not `show`
            _set(self.by_hand, True)

    def take_restart(self) -> Restart | None:
        """The new episode that was asked for since the last call."""
        wanted, self._restart = self._restart, None
        return wanted

    def take_step(self) -> bool:
        """Whether to make a control step now."""
        wanted, self._single_step = self._single_step, False
        return wanted or not self.pause.value

    def command(self) -> tuple[float, float, float] | None:
        """Forward and sideways velocity and yaw rate; None to leave them to the task."""
        if not self.by_hand.value:
            return None
        forward, left, turn = (self.sliders[index].value if index in self.sliders else 0.0 for index in range(3))
        return forward, left, turn

    def show(self, session: Session, clock: Clock) -> None:
        """What the robot does now; the sliders follow where the task commands."""
        if not self.by_hand.value:
            for index, slider in self.sliders.items():
                _set(slider, min(max(round(session.command[index], 2), slider.min), slider.max))
        self.text.content = report(session, clock)


def _set(handle: viser.GuiInputHandle, value: object) -> None:
    """Shows `value` in a control; mypy does not see the setter that viser's controls have."""
    handle.value = value  # type: ignore[misc]


def report(session: Session, clock: Clock) -> str:
    """Markdown: commands against velocities, and the episodes so far."""
    tally = session.tally
    rows = [
        f"| {name} {unit} | {asked:.2f} | {has:.2f} |"
        for (name, unit), asked, has in zip(_COMMANDS, session.command, session.velocity, strict=True)
    ]
    lines = [
        "| | asked | is |",
        "|:--|--:|--:|",
        *rows,
        "",
        f"Episode {tally.episodes + 1}: {tally.seconds:.1f} s, {session.distance:.1f} m, reward {tally.reward:.1f}",
        "",
        f"Ended: {tally.episodes}, of them falls {tally.falls}, traversed {tally.traversed}",
        *(["", f"The last {tally.last}"] if tally.last else []),
        "",
        f"Speed {clock.speed:.2f} of real time",
    ]
    return "\n".join(lines)
