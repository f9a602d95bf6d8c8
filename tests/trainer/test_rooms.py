"""The rooms of the trainer: imports point one way, and nothing goes in a circle.

Imports are read from the sources, not executed: those inside functions count too.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import trainer

PACKAGE = Path(trainer.__file__).parent
ROOMS = (
    # From the bottom up: a room may import from rooms before its own line, and from its own.
    ("config", "processes"),
    ("tasks",),
    ("models",),
    ("algorithms",),
    ("runs",),
    ("engines",),
    ("training",),
    ("deploy",),
    ("evaluation", "diagnosis", "report", "export", "viewer", "robot_sim"),
    ("study",),
    ("commands",),
    ("cli",),
)
LEVEL = {room: level for level, rooms in enumerate(ROOMS) for room in rooms}
ENTRY_POINTS = {"trainer.__main__", "trainer.training.worker", "trainer.engines.isaaclab.train"}
"""Started as `python -m`, imported by nobody: they may import whatever they start."""


def modules() -> dict[str, Path]:
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = ("trainer", *path.relative_to(PACKAGE).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imported_by(name: str, *, at_import: bool = False) -> set[str]:
    """The modules of the trainer that a module imports; with `at_import` only those that come with it."""
    tree = ast.parse(MODULES[name].read_text(encoding="utf-8"))
    nodes = list(ast.walk(tree))
    if at_import:
        skipped = set()
        for node in nodes:
            typing_only = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
            if typing_only or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                skipped |= set(ast.walk(node))
        nodes = [node for node in nodes if node not in skipped]
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            assert node.level == 0, f"{name}: relative imports hide what is imported"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in MODULES else node.module)
    return {module for module in found if module in MODULES} - {name, "trainer"}


def room_of(name: str) -> str:
    return name.split(".")[1]


@pytest.mark.parametrize("name", sorted(MODULES.keys() - ENTRY_POINTS - {"trainer"}))
def test_imports_point_down(name):
    level = LEVEL[room_of(name)]
    upward = [other for other in imported_by(name) if LEVEL.get(room_of(other), len(ROOMS)) > level]
    assert not upward, f"{name} imports {', '.join(sorted(upward))}"


def test_entry_points_are_imported_by_nobody():
    for name in MODULES:
        assert not imported_by(name) & ENTRY_POINTS


def test_no_engine_imports_another_but_physx_which_is_isaac_lab_without_isaac_sim():
    engines = ("mujoco", "mjlab", "isaaclab", "physx")
    for name in MODULES:
        parts = name.split(".")
        if parts[1:2] != ["engines"] or len(parts) < 4 or parts[2] not in engines:
            continue
        others = {other.split(".")[2] for other in imported_by(name) if other.startswith("trainer.engines.")}
        allowed = {parts[2], "isaaclab"} if parts[2] == "physx" else {parts[2]}
        assert not (others & set(engines)) - allowed, f"{name} imports {others}"


def test_no_import_goes_in_a_circle():
    graph = {name: imported_by(name, at_import=True) for name in MODULES}
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, f"a circle: {' -> '.join((*path[path.index(name) :], name))}"
        if name in done:
            return
        for other in sorted(graph[name]):
            visit(other, (*path, name))
        done.add(name)

    for name in sorted(graph):
        visit(name, ())


def test_only_the_command_line_imports_commands():
    for name in MODULES.keys() - ENTRY_POINTS:
        if room_of(f"{name}.") not in ("commands", "cli"):
            assert not [other for other in imported_by(name) if other.startswith("trainer.commands")], name


def test_the_root_has_at_most_six_modules():
    assert len(list(PACKAGE.glob("*.py"))) <= 6
