"""mjlab: MuJoCo Warp on a GPU, or slowly on a CPU; the same robot model, tiles and task as native MuJoCo's.

mjlab goes first: while it is imported it imports our tasks (entry point `mjlab.tasks`), which need this package whole.
"""

import mjlab  # noqa: F401
