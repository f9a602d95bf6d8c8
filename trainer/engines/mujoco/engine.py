"""The engine: E robots, each with its own randomised model on its own terrain tile, stepped on all cores at once.

Physics runs at 200 Hz, four steps to a control step. Root and joint quantities are those at the end of a control step;
what MuJoCo computes as sensors (feet, contacts, torques) is of 5 ms before, the start of the last physics step.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import mujoco
import numpy as np
import torch
from mujoco import rollout
from torch import Tensor

from trainer.engines.ground import Ground
from trainer.engines.mjcf.model import build_model, sizes_of, sole_sites
from trainer.engines.mjcf.reading import StateReader
from trainer.processes import cores
from trainer.tasks.physics import PHYSICS_DT
from trainer.tasks.robots import RobotSpec
from trainer.tasks.state import RobotState
from trainer.tasks.terrains import Terrain

_WARNINGS: list[str] = []
"""What the simulator complained of since the last step began: MuJoCo has one handler for the whole process."""
_FULL_STATE = mujoco.mjtState.mjSTATE_FULLPHYSICS.value


class MujocoEngine:
    """E robots in native MuJoCo.

    Args:
        robot: Which robot.
        tiles: Terrain tiles that environments can be put on; empty for an endless plane.
        num_envs: E.
        control_dt: Seconds of a control step, a multiple of the physics step.
        num_threads: Simulator threads; None for one a core.
    """

    def __init__(
        self,
        robot: RobotSpec,
        tiles: Sequence[Terrain],
        num_envs: int,
        *,
        control_dt: float = 0.02,
        num_threads: int | None = None,
    ) -> None:
        if num_envs < 1:
            raise ValueError(f"num_envs: expected at least 1, got {num_envs}")
        decimation = round(control_dt / PHYSICS_DT)
        if decimation < 1 or abs(decimation * PHYSICS_DT - control_dt) > 1e-9:
            raise ValueError(f"control_dt: expected a multiple of the physics step of {PHYSICS_DT} s, got {control_dt}")
        self.robot, self.tiles, self.num_envs, self.decimation = robot, list(tiles), num_envs, decimation
        self.num_threads = cores() if num_threads is None else num_threads
        # Left alone, MuJoCo prints every warning and appends it to a file in the working directory, without end.
        mujoco.set_mju_user_warning(_WARNINGS.append)
        self._pool: dict[int, mujoco.MjModel] = {}
        self._num_boxes = max((len(tile.solid) for tile in self.tiles), default=0)
        base = self._tile_model(0)
        self._reader = StateReader(base, robot)
        self._soles = [base.site(f"sole{index}").id for index in range(len(robot.feet))]
        self._sole_points = [base.site(name).id for name in sole_sites(robot)]
        self._models = [base] * num_envs
        self._model_tile = [-1] * num_envs
        self._data = [mujoco.MjData(base) for _ in range(max(self.num_threads, 1))]
        # One thread is this one: another would only have to be woken and waited for.
        self._rollout = rollout.Rollout(nthread=self.num_threads if self.num_threads > 1 else 0)
        self.tile_of = torch.zeros(num_envs, dtype=torch.int64)
        self.dynamics = torch.zeros(num_envs, 5)
        self.motors: Tensor | None = None
        self._resting = np.zeros(num_envs, dtype=bool)
        self._state = np.zeros((num_envs, mujoco.mj_stateSize(base, _FULL_STATE)))
        self._sensors = np.zeros((num_envs, base.nsensordata))
        self._nq, self._nv = base.nq, base.nv
        if self._state.shape[1] != 1 + self._nq + self._nv:
            raise RuntimeError("expected a simulator state of time, positions and velocities alone")
        self._trajectory = np.zeros((num_envs, decimation, self._state.shape[1]))
        self._sensor_trajectory = np.zeros((num_envs, decimation, base.nsensordata))
        self._controls = np.zeros((num_envs, decimation, base.nu))
        self.ground = Ground(self.tiles)

    def _tile_model(self, index: int) -> mujoco.MjModel:
        """The robot on a tile, compiled when it is first asked for: a curriculum has far more tiles than are in use."""
        if index not in self._pool:
            tile = self.tiles[index] if self.tiles else None
            model = build_model(self.robot, tile, self._num_boxes)
            if not self._pool:
                self._sizes, self._first, self._varying = sizes_of(model), model, set[str]()
            else:
                expected = self._sizes
                if different := {name: size for name, size in sizes_of(model).items() if expected[name] != size}:
                    raise RuntimeError(
                        f"tile {tile.name if tile else 0}: model sizes differ from the rest: {different}"
                    )
                self._varying |= _differing_arrays(self._first, model)
            self._pool[index] = model
        return self._pool[index]

    def reset(
        self,
        env_ids: Tensor,
        tile: Tensor,
        root_pos: Tensor,
        yaw: Tensor,
        joint_pos: Tensor,
        dynamics: Tensor,
        motors: Tensor | None = None,
    ) -> RobotState:
        """Puts robots at rest where the task wants them; returns their state, [K] rows.

        Args:
            env_ids: [K] int64.
            tile: [K] int64, into `tiles`; ignored on the plane.
            root_pos: [K, 3].
            yaw: [K]; ignored by a planar robot.
            joint_pos: [K, J].
            dynamics: [K, 5]: friction, added mass, centre-of-mass offset x, y, z.
            motors: [K, 3, J]: factors on torque, stiffness and damping; None for the motors as they are.
        """
        rows = env_ids.numpy()
        qpos = np.zeros((len(rows), self._nq))
        if self.robot.planar:
            qpos[:, :2] = root_pos[:, ::2].numpy()
        else:
            qpos[:, :3] = root_pos.numpy()
            qpos[:, 3], qpos[:, 6] = torch.cos(0.5 * yaw).numpy(), torch.sin(0.5 * yaw).numpy()
        qpos[:, self._reader.joint_qpos] = joint_pos.numpy()
        self._resting[rows] = False
        self._state[rows] = 0.0
        self._state[rows, 1 : 1 + self._nq] = qpos
        self._sensors[rows] = 0.0
        self._keep_motors(env_ids, motors)
        data = self._data[0]
        drawn = zip(rows.tolist(), tile.tolist(), dynamics.tolist(), strict=True)
        for row, (env, its_tile, its_dynamics) in enumerate(drawn):
            model = self._prepare(env, its_tile, its_dynamics)
            data.qpos[:] = qpos[row]
            mujoco.mj_kinematics(model, data)  # of all sensors, a robot at rest in the air has foot positions alone
            self._sensors[env, self._reader.foot_pos] = data.site_xpos[self._soles].ravel()
            self._sensors[env, self._reader.sole_points] = data.site_xpos[self._sole_points].ravel()
        self.tile_of[env_ids] = tile
        self.dynamics[env_ids] = dynamics
        return self._read(env_ids)

    def _prepare(self, env: int, tile: int, dynamics: Sequence[float]) -> mujoco.MjModel:
        """The model of `env`, on the tile and with the dynamics of its new episode."""
        base = self._tile_model(tile if self.tiles else 0)
        if self._model_tile[env] != tile:
            if self._model_tile[env] < 0:
                self._models[env] = copy.copy(base)
            else:  # a copy of the whole was half of what a reset costs
                for name in self._varying:
                    getattr(self._models[env], name)[:] = getattr(base, name)
            self._model_tile[env] = tile
        model, trunk = self._models[env], self._reader.trunk
        friction, mass, *offset = dynamics
        model.geom_friction[self._reader.foot_geoms, 0] = friction
        model.body_mass[trunk] = base.body_mass[trunk] + mass
        model.body_inertia[trunk] = base.body_inertia[trunk] * (1.0 + mass / base.body_mass[trunk])
        model.body_ipos[trunk] = base.body_ipos[trunk] + offset
        # What mj_setConst would do for the trunk and the bodies above it.
        model.body_subtreemass[self._reader.trunk_chain] = base.body_subtreemass[self._reader.trunk_chain] + mass
        if self.motors is not None:
            strength, stiffness, damping = self.motors[env].double().numpy()
            control = self._reader.control
            model.actuator_gainprm[control, 0] = base.actuator_gainprm[control, 0] * strength * stiffness
            model.actuator_biasprm[control, 1] = base.actuator_biasprm[control, 1] * strength * stiffness
            model.actuator_biasprm[control, 2] = base.actuator_biasprm[control, 2] * strength * damping
            model.actuator_forcerange[control] = base.actuator_forcerange[control] * strength[:, None]
        return model

    def _keep_motors(self, env_ids: Tensor, motors: Tensor | None) -> None:
        """Factors of all robots, from the first reset on that gives any: models go from robot to robot."""
        if motors is None:
            return
        if self.motors is None:
            self.motors = torch.ones(self.num_envs, *motors.shape[1:])
        self.motors[env_ids] = motors

    def step(self, targets: Tensor) -> tuple[RobotState, Tensor]:
        """One control step towards joint targets [E, J], or [E, decimation, J], those of each physics step.

        Returns:
            The state, and broken [E] bool: environments whose simulation diverged. Their state is the last one, made
            finite; they must be reset.
        """
        held = targets if targets.dim() == 3 else targets[:, None]
        self._controls[:, :, self._reader.control] = held.numpy()
        _WARNINGS.clear()
        rows: slice | np.ndarray = slice(None)
        models = self._models
        if self._resting.any():
            rows = np.flatnonzero(~self._resting)
            models = [self._models[row] for row in rows.tolist()]
        state, sensors = self.simulate(models, self._state[rows], self._controls[rows])
        # Finite but absurd is broken too: float32 observations would overflow next.
        fine = (_squares(state) < 1e12) & (_squares(sensors) < 1e18)
        broken = np.zeros(self.num_envs, dtype=bool)
        broken[rows] = ~fine
        if not fine.all():
            rows, state, sensors = np.arange(self.num_envs)[rows][fine], state[fine], sensors[fine]
            # The state before may be what was not finite.
            self._state[broken] = np.nan_to_num(self._state[broken], nan=0.0, posinf=0.0, neginf=0.0)
        self._state[rows], self._sensors[rows] = state, sensors
        return self._read(slice(None)), torch.from_numpy(broken)

    def rest(self, env_ids: Tensor) -> None:
        """Leaves env_ids [K] as they are, without simulating them, until they are reset: nobody looks any more."""
        self._resting[env_ids.numpy()] = True

    def simulate(
        self, models: list[mujoco.MjModel], state: np.ndarray, controls: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The simulator alone: K robots from state [K, S] under controls [K, decimation, U].

        Returns:
            Their state and sensors after it, [K, S] and [K, D], in buffers that the next call writes into.
        """
        count = len(models)
        trajectory, sensors = self._trajectory[:count], self._sensor_trajectory[:count]
        if not count:
            return trajectory[:, -1], sensors[:, -1]
        self._rollout.rollout(
            models,
            self._data,
            state,
            controls,
            skip_checks=True,
            nstep=self.decimation,
            state=trajectory,
            sensordata=sensors,
        )
        return trajectory[:, -1], sensors[:, -1]

    def current_inputs(self) -> tuple[list[mujoco.MjModel], np.ndarray, np.ndarray]:
        """Arguments for `simulate` that repeat the last control step's work from the present state, as copies."""
        return list(self._models), self._state.copy(), self._controls.copy()

    def push(self, env_ids: Tensor, velocity: Tensor) -> None:
        """Adds velocity [K, 2] (world x, y) to the roots of env_ids [K]."""
        rows, first = env_ids.numpy(), 1 + self._nq
        self._state[rows, first] += velocity[:, 0].numpy()
        if not self.robot.planar:
            self._state[rows, first + 1] += velocity[:, 1].numpy()

    def _read(self, rows: slice | Tensor) -> RobotState:
        index = rows if isinstance(rows, slice) else rows.numpy()
        state = torch.from_numpy(self._state[index]).float()
        sensors = torch.from_numpy(self._sensors[index]).float()
        qpos, qvel = state[:, 1 : 1 + self._nq], state[:, 1 + self._nq : 1 + self._nq + self._nv]
        everyones = self.tile_of, self.dynamics
        tile, dynamics = everyones if isinstance(rows, slice) else (value.index_select(0, rows) for value in everyones)
        return self._reader.read(qpos, qvel, sensors, self.ground, tile, dynamics)

    def first_warning(self) -> str | None:
        """What the simulator complained of first in the last step; the rest mostly follows from it."""
        return _WARNINGS[0] if _WARNINGS else None

    def model_of(self, env: int, *, visual: bool = False) -> mujoco.MjModel:
        """The model environment `env` runs; with `visual`, one with meshes and light for a picture of it."""
        if not visual:
            return self._models[env]
        tile = self.tiles[int(self.tile_of[env])] if self.tiles else None
        return build_model(self.robot, tile, visual=True)

    def qpos_of(self, env: int) -> np.ndarray:
        """Generalised positions of environment `env`, MuJoCo's order."""
        return self._state[env, 1 : 1 + self._nq].copy()

    def state_dict(self) -> dict[str, Tensor]:
        """All that a bit-exact continuation needs."""
        return {
            "state": torch.from_numpy(self._state.copy()),
            "sensors": torch.from_numpy(self._sensors.copy()),
            "tile_of": self.tile_of.clone(),
            "dynamics": self.dynamics.clone(),
            **({} if self.motors is None else {"motors": self.motors.clone()}),
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> RobotState:
        """Continues from `state_dict()`; returns the state of all robots."""
        for name, expected in (("state", self._state.shape), ("sensors", self._sensors.shape)):
            if state[name].shape != expected:
                raise ValueError(
                    f"engine {name}: expected shape {expected}, got {tuple(state[name].shape)}; a run of an earlier"
                    " version can be evaluated and played, not continued"
                )
        self._resting[:] = False
        self._state[:], self._sensors[:] = state["state"].numpy(), state["sensors"].numpy()
        self.tile_of.copy_(state["tile_of"])
        self.dynamics.copy_(state["dynamics"])
        self._keep_motors(torch.arange(self.num_envs), state.get("motors"))
        for env in range(self.num_envs):
            self._prepare(env, int(self.tile_of[env]), self.dynamics[env].tolist())
        return self._read(slice(None))


def _squares(rows: np.ndarray) -> np.ndarray:
    """[K]: sum of the squares of each row of [K, N], in one pass; NaN or infinite where a number is or overflows."""
    return np.einsum("ij,ij->i", rows, rows)


def _differing_arrays(first: mujoco.MjModel, second: mujoco.MjModel) -> set[str]:
    """Names of the arrays that two models of equal sizes do not share: boxes, and the tree over them."""
    return {
        name
        for name in dir(first)
        if isinstance(value := getattr(first, name), np.ndarray) and not np.array_equal(value, getattr(second, name))
    }
