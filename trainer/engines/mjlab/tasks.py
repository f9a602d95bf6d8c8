"""The tasks in mjlab's registry: imported by mjlab itself (entry point `mjlab.tasks`), it registers them."""

from __future__ import annotations

from mjlab.tasks.registry import register_mjlab_task

from trainer.engines.mjlab.agent_cfg import agent_cfg
from trainer.engines.mjlab.env_cfg import env_cfg
from trainer.engines.mjlab.runner import P3Runner
from trainer.tasks import TASKS

TASK_IDS = {"P3-Flat-Unitree-G1": "g1-flat", "P3-Parkour-Unitree-G1": "g1-parkour"}

for _task_id, _name in TASK_IDS.items():
    register_mjlab_task(
        task_id=_task_id,
        env_cfg=env_cfg(TASKS[_name], num_envs=4096),
        play_env_cfg=env_cfg(TASKS[_name], num_envs=8, visual=True),
        rl_cfg=agent_cfg(_name),
        runner_cls=P3Runner,
    )
