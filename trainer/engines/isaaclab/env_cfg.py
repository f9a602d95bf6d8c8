"""Scene and managers of the tasks, from their `TaskConfig`: Hydra can change what is here, terms are in `terms.py`."""

from __future__ import annotations

from dataclasses import field
from typing import Any

import isaaclab.envs.mdp as isaac_mdp
import isaaclab.sim as sim_utils
from isaaclab.assets import ArticulationCfg, AssetBaseCfg
from isaaclab.envs import ManagerBasedRLEnvCfg
from isaaclab.managers import (
    CurriculumTermCfg,
    EventTermCfg,
    ObservationGroupCfg,
    ObservationTermCfg,
    RewardTermCfg,
    SceneEntityCfg,
    TerminationTermCfg,
)
from isaaclab.scene import InteractiveSceneCfg
from isaaclab.sensors import ContactSensorCfg, RayCasterCfg, patterns
from isaaclab.terrains import TerrainImporterCfg
from isaaclab.utils import configclass

from trainer.engines.isaaclab import terms
from trainer.engines.isaaclab.robot import g1_cfg
from trainer.engines.isaaclab.terrain import generator_cfg
from trainer.tasks.g1 import G1_FLAT, G1_PARKOUR
from trainer.tasks.locomotion import OBSERVATION_GROUPS, TaskConfig
from trainer.tasks.physics import PHYSICS_DT
from trainer.tasks.registry import TASKS
from trainer.tasks.robots import G1
from trainer.tasks.settings import plain

_GROUND = "/World/ground"
_MATERIAL = sim_utils.RigidBodyMaterialCfg(
    # Multiplied by 1, the robot's material decides; Isaac Lab's usual restitution of 0 would switch the robot's off.
    friction_combine_mode="multiply",
    restitution_combine_mode="multiply",
    static_friction=1.0,
    dynamic_friction=1.0,
    restitution=1.0,
)


@configclass
class SceneCfg(InteractiveSceneCfg):
    """A robot on the ground, with contact sensors and a height scanner."""

    terrain: TerrainImporterCfg = TerrainImporterCfg(
        prim_path=_GROUND, terrain_type="plane", collision_group=-1, physics_material=_MATERIAL
    )
    robot: ArticulationCfg = g1_cfg(G1)
    height_scanner: RayCasterCfg = RayCasterCfg(
        prim_path="{ENV_REGEX_NS}/Robot/pelvis",
        offset=RayCasterCfg.OffsetCfg(pos=(0.0, 0.0, 20.0)),
        ray_alignment="yaw",
        pattern_cfg=patterns.GridPatternCfg(resolution=0.1, size=(1.6, 1.0)),
        mesh_prim_paths=[_GROUND],
    )
    contact_forces: ContactSensorCfg = ContactSensorCfg(prim_path="{ENV_REGEX_NS}/Robot/.*")
    sky_light: AssetBaseCfg = AssetBaseCfg(prim_path="/World/skyLight", spawn=sim_utils.DomeLightCfg(intensity=750.0))


@configclass
class ActionsCfg:
    """One action a joint."""

    joint_targets: terms.JointTargetsCfg = terms.JointTargetsCfg()


@configclass
class CommandsCfg:
    """The velocity command."""

    velocity: terms.TaskCommandCfg = terms.TaskCommandCfg()


@configclass
class GroupCfg(ObservationGroupCfg):
    """An observation group of the task, whole."""

    whole: ObservationTermCfg = ObservationTermCfg(func=terms.observation, params={"group": ""})


@configclass
class TerminationsCfg:
    """How episodes end."""

    fell: TerminationTermCfg = TerminationTermCfg(func=terms.fell)
    out_of_time: TerminationTermCfg = TerminationTermCfg(func=terms.out_of_time, time_out=True)
    traversed: TerminationTermCfg = TerminationTermCfg(func=terms.traversed, time_out=True)


@configclass
class CurriculumCfg:
    """The task's curriculum."""

    terrain_levels: CurriculumTermCfg = CurriculumTermCfg(func=terms.terrain_levels)


def observation_groups() -> dict[str, GroupCfg]:
    """The task's groups, by name."""
    return {
        group: GroupCfg(whole=ObservationTermCfg(func=terms.observation, params={"group": group}))
        for group in OBSERVATION_GROUPS
    }


def reward_terms(config: TaskConfig) -> dict[str, RewardTermCfg]:
    """The task's terms with their weights, and the penalty for a fall."""
    rewards = {
        name: RewardTermCfg(func=terms.reward_rate, weight=weight, params={"term": name})
        for name, weight in config.rewards.items()
    }
    rewards["fall"] = RewardTermCfg(func=terms.fall, weight=-config.fall_penalty)
    return rewards


def event_terms(config: TaskConfig, *, each_episode: bool = False) -> dict[str, EventTermCfg]:
    """The paper's randomisation, and what begins episodes.

    Material, mass and centre of mass are drawn once for each environment: PhysX takes them from the CPU, which is no
    work for every reset on a GPU. Pushes come with the actions (`terms.JointTargets`): the task knows when they are
    due.

    Args:
        config: The task.
        each_episode: Give every episode the dynamics that the task drew for it, as native MuJoCo does; restitution,
            which the task does not draw, is still the environment's.
    """
    ranges, trunk = config.dynamics, SceneEntityCfg("robot", body_names=config.robot.trunk)
    com = {"x": ranges.com_xy, "y": ranges.com_xy, "z": ranges.com_z}
    events = {
        "material": EventTermCfg(
            func=terms.randomize_material,
            mode="startup",
            params={"friction_range": ranges.friction, "restitution_range": ranges.restitution, "num_materials": 256},
        ),
        "added_mass": EventTermCfg(
            func=isaac_mdp.randomize_rigid_body_mass,  # pyright: ignore[reportArgumentType]  a class, as is usual
            mode="startup",
            params={"asset_cfg": trunk, "mass_distribution_params": ranges.added_mass, "operation": "add"},
        ),
        "center_of_mass": EventTermCfg(
            func=isaac_mdp.randomize_rigid_body_com, mode="startup", params={"asset_cfg": trunk, "com_range": com}
        ),
        "begin_episodes": EventTermCfg(func=terms.begin_episodes, mode="reset"),
    }
    if each_episode:
        del events["added_mass"], events["center_of_mass"]
        events["dynamics"] = EventTermCfg(func=terms.set_dynamics, mode="reset")
    return events


@configclass
class TaskEnvCfg(ManagerBasedRLEnvCfg):
    """A G1 task."""

    task: str = G1_FLAT.name
    """Its name in `trainer/tasks/registry.py`."""
    task_settings: dict[str, Any] = field(default_factory=dict)
    """Those that are not its defaults; `take_settings` writes them."""
    difficulty: float = -1.0
    """Fixes the terrains' difficulty, in [0, 1]; -1 for the curriculum (not None, which Hydra refuses to replace)."""
    scene: SceneCfg = SceneCfg(num_envs=4096, env_spacing=2.5)
    actions: ActionsCfg = ActionsCfg()
    commands: CommandsCfg = CommandsCfg()
    observations: dict[str, GroupCfg] = observation_groups()
    rewards: dict[str, RewardTermCfg] = reward_terms(G1_FLAT)
    terminations: TerminationsCfg | dict[str, TerminationTermCfg] = TerminationsCfg()
    events: dict[str, EventTermCfg] = event_terms(G1_FLAT)

    def __post_init__(self) -> None:
        """Rates and sizes that belong together."""
        self.decimation = round(G1_FLAT.control_dt / PHYSICS_DT)
        self.episode_length_s = G1_FLAT.episode_seconds
        self.sim.dt = PHYSICS_DT
        self.sim.render_interval = self.decimation
        self.sim.physics_material = self.scene.terrain.physics_material
        self.sim.physx.gpu_max_rigid_patch_count = 10 * 2**15  # 4096 robots on one mesh have more than the default


@configclass
class FlatEnvCfg(TaskEnvCfg):
    """`g1-flat`: an endless plane."""


@configclass
class ParkourEnvCfg(TaskEnvCfg):
    """`g1-parkour`: the seven terrains and flat ground, with their curriculum."""

    task: str = G1_PARKOUR.name
    rewards: dict[str, RewardTermCfg] = reward_terms(G1_PARKOUR)
    events: dict[str, EventTermCfg] = event_terms(G1_PARKOUR)
    curriculum: CurriculumCfg = CurriculumCfg()

    def __post_init__(self) -> None:
        """The tiles instead of the plane."""
        super().__post_init__()
        self.scene.terrain.terrain_type = "generator"
        self.scene.terrain.terrain_generator = generator_cfg(G1_PARKOUR)


def take_settings(cfg: TaskEnvCfg, task: TaskConfig) -> None:
    """Gives an environment the settings of the task that are not its defaults.

    What the task leaves as it is stays as Hydra left it.
    """
    default = TASKS[cfg.task]
    if task == default:
        return
    cfg.task_settings = plain(task)
    if task.rewards != default.rewards or task.fall_penalty != default.fall_penalty:
        cfg.rewards = reward_terms(task)
    if task.dynamics != default.dynamics:
        cfg.events = event_terms(task)
    if task.episode_seconds != default.episode_seconds:
        cfg.episode_length_s = task.episode_seconds
    if task.control_dt != default.control_dt:
        cfg.decimation = round(task.control_dt / cfg.sim.dt)
        cfg.sim.render_interval = cfg.decimation
    if task.terrains:
        cfg.scene.terrain.terrain_type = "generator"
        cfg.scene.terrain.terrain_generator = generator_cfg(task)
        cfg.curriculum = CurriculumCfg()
    else:
        cfg.scene.terrain.terrain_type, cfg.scene.terrain.terrain_generator = "plane", None
        cfg.curriculum = None


def env_cfg(
    task: TaskConfig, num_envs: int, *, seed: int, difficulty: float | None = None, auto_reset: bool = True
) -> TaskEnvCfg:
    """The environment of any G1 task on a CPU: every episode has its own dynamics.

    Args:
        task: What is learned.
        num_envs: E.
        seed: Seed of everything random.
        difficulty: Fixes the terrains' difficulty instead of the curriculum.
        auto_reset: Begin a new episode where one ends; without it, an episode that has ended goes on.
    """
    cfg = ParkourEnvCfg() if task.name == G1_PARKOUR.name else FlatEnvCfg()
    take_settings(cfg, task)
    cfg.events = event_terms(task, each_episode=True)
    cfg.seed, cfg.scene.num_envs, cfg.sim.device = seed, num_envs, "cpu"
    cfg.difficulty = -1.0 if difficulty is None else difficulty
    if not auto_reset:
        cfg.terminations = {}
    return cfg
