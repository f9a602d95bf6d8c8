"""Isaac Lab's engine on NVIDIA's standalone PhysX: `trainer/engines/isaaclab` on a CPU, without Isaac Sim.

Isaac Lab's own articulation, sensors, managers and `step` run here unchanged. What Isaac Sim would bring around them
(the app, the scene with its spawners and cloner, the simulation context) is replaced by the stand-ins of this package.
`ovphysx` is NVIDIA's, under NVIDIA's licence: `make physx` fetches it where a user asks for it (`docs/engines.md`).
"""
