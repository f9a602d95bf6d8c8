"""A pytest plugin for the process of these checks (`test_isaaclab.py` starts it): stubs stand in for Isaac Sim."""

from __future__ import annotations

from trainer.engines.physx import kit_stub

kit_stub.install()

import fake_physx  # noqa: E402

fake_physx.install()
