"""Registers the tasks with gymnasium, as Isaac Lab's task packages do: importing this module is all there is to it.

Only names are registered, so it is safe before the simulator has started and without it.
"""

from __future__ import annotations

import gymnasium

_PACKAGE = "trainer.engines.isaaclab"

for _task_id, _name in (("P3-Parkour-G1-v0", "parkour"), ("P3-Flat-G1-v0", "flat")):
    gymnasium.register(
        id=_task_id,
        entry_point=f"{_PACKAGE}.managed_env:ManagedTaskEnv",
        disable_env_checker=True,
        kwargs={
            "env_cfg_entry_point": f"{_PACKAGE}.env_cfg:{_name.capitalize()}EnvCfg",
            "rsl_rl_cfg_entry_point": f"{_PACKAGE}.agent_cfg:{_name.capitalize()}RunnerCfg",
            "p3_cfg_entry_point": f"{_PACKAGE}.agent_cfg:{_name}_settings",
        },
    )
