"""A task as mjlab's settings of an environment."""

from __future__ import annotations

from mjlab.envs import ManagerBasedRlEnvCfg
from mjlab.managers.curriculum_manager import CurriculumTermCfg
from mjlab.managers.event_manager import EventTermCfg
from mjlab.managers.observation_manager import ObservationGroupCfg, ObservationTermCfg
from mjlab.managers.reward_manager import RewardTermCfg
from mjlab.managers.termination_manager import TerminationTermCfg
from mjlab.scene import SceneCfg
from mjlab.sim import MujocoCfg, SimulationCfg
from mjlab.viewer import ViewerConfig

from trainer.engines.mjlab import terms
from trainer.engines.mjlab.robot import ENTITY, robot_cfg
from trainer.engines.mjlab.terrain import terrain_cfg
from trainer.tasks.actuation import randomizes_motors
from trainer.tasks.locomotion import OBSERVATION_GROUPS, TaskConfig
from trainer.tasks.physics import PHYSICS_DT


def env_cfg(
    task: TaskConfig, num_envs: int, *, seed: int | None = None, difficulty: float | None = None, visual: bool = False
) -> ManagerBasedRlEnvCfg:
    """The environment of a task.

    Args:
        task: What is learned.
        num_envs: E.
        seed: Seed of terrains and of everything random; None leaves all but the terrains to mjlab's scripts.
        difficulty: Fixes the terrains' difficulty instead of the curriculum.
        visual: Keep the robot's meshes, for a picture of it.
    """
    time_outs = {"out_of_time": terms.out_of_time, "traversed": terms.traversed}
    if not task.terrains:
        del time_outs["traversed"]
    motors = {}
    if randomizes_motors(task.dynamics):
        motors["motors"] = EventTermCfg(func=terms.randomize_motors, mode="reset")
    return ManagerBasedRlEnvCfg(
        decimation=round(task.control_dt / PHYSICS_DT),
        episode_length_s=task.episode_seconds,
        seed=seed,
        scene=SceneCfg(
            num_envs=num_envs,
            terrain=terrain_cfg(task, seed or 0, difficulty),
            entities={ENTITY: robot_cfg(task.robot, visual=visual)},
            extent=2.0,
        ),
        # Solver and tolerance are MuJoCo's own, as in the native engine. Room for a robot that lies on stones.
        sim=SimulationCfg(nconmax=64, njmax=300, mujoco=MujocoCfg(timestep=PHYSICS_DT, integrator="implicitfast")),
        commands={terms.COMMAND: terms.WalkCommandCfg(task=task, difficulty=difficulty)},
        actions={"joint_targets": terms.WalkActionCfg()},
        observations={
            group: ObservationGroupCfg(
                terms={group: ObservationTermCfg(func=terms.observation, params={"group": group})}
            )
            for group in OBSERVATION_GROUPS
        },
        rewards={
            **{
                name: RewardTermCfg(func=terms.reward_rate, weight=weight, params={"term": name})
                for name, weight in task.rewards.items()
            },
            "fall": RewardTermCfg(func=terms.fall, weight=-task.fall_penalty),
        },
        terminations={
            "fell": TerminationTermCfg(func=terms.fell),
            **{name: TerminationTermCfg(func=func, time_out=True) for name, func in time_outs.items()},
        },
        events={
            "begin_episodes": EventTermCfg(func=terms.begin_episodes, mode="reset"),
            "dynamics": EventTermCfg(func=terms.randomize_dynamics, mode="reset"),
            **motors,
        },
        curriculum={"terrain_levels": CurriculumTermCfg(func=terms.terrain_levels)} if task.terrains else {},
        viewer=ViewerConfig(
            origin_type=ViewerConfig.OriginType.ASSET_BODY,
            entity_name=ENTITY,
            body_name=task.robot.trunk,
            distance=3.0,
            elevation=-10.0,
            azimuth=90.0,
        ),
    )
