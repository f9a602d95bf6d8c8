"""Isaac Lab 2.3.2 on PhysX, on a GPU: the same tasks as manager-based environments.

Nothing but `tasks.py` and `train.py` imports without Isaac Lab. Checked against its sources and stepped on PhysX on a
CPU (`docs/physx.md`), never in Isaac Sim.
"""
