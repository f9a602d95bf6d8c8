"""Rotations as 3 × 3 matrices. Orientations are (w, x, y, z), body to world."""

from __future__ import annotations

import math

import numpy as np

from trainer.deploy.g1 import MOTORS

_WAIST = tuple(MOTORS.index(f"waist_{axis}_joint") for axis in ("yaw", "roll", "pitch"))
_WAIST_AT = np.array([-0.004, 0.0, 0.044])
"""Place of the waist's joints in the pelvis' frame, m; they lie within a centimetre of each other."""


def matrix_of(quat: np.ndarray) -> np.ndarray:
    """[3, 3] of a quaternion [4]."""
    w, x, y, z = (np.asarray(quat, np.float64) / np.linalg.norm(quat)).tolist()
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )


def quat_of(matrix: np.ndarray) -> np.ndarray:
    """[4] (w, x, y, z), w ≥ 0, of a rotation matrix."""
    m = matrix
    # Four ways to the same quaternion; the largest of these is the best conditioned one.
    squares = np.array(
        [1 + m[0, 0] + m[1, 1] + m[2, 2], 1 + m[0, 0] - m[1, 1] - m[2, 2],
         1 - m[0, 0] + m[1, 1] - m[2, 2], 1 - m[0, 0] - m[1, 1] + m[2, 2]]
    )  # fmt: skip
    a, b, c = m[2, 1] - m[1, 2], m[0, 2] - m[2, 0], m[1, 0] - m[0, 1]
    d, e, f = m[1, 0] + m[0, 1], m[2, 0] + m[0, 2], m[2, 1] + m[1, 2]
    table = [[squares[0], a, b, c], [a, squares[1], d, e], [b, d, squares[2], f], [c, e, f, squares[3]]]
    quat = np.array(table[int(np.argmax(squares))])
    quat /= np.linalg.norm(quat)
    return quat if quat[0] >= 0 else -quat


def of_angles(roll: float, pitch: float, yaw: float) -> np.ndarray:
    """[3, 3]: about x, then y, then z of the fixed frame, as URDF has it."""
    return _about(2, yaw) @ _about(1, pitch) @ _about(0, roll)


def _about(axis: int, angle: float) -> np.ndarray:
    cos, sin = math.cos(angle), math.sin(angle)
    matrix = np.eye(3)
    i, j = (axis + 1) % 3, (axis + 2) % 3
    matrix[i, i] = matrix[j, j] = cos
    matrix[i, j], matrix[j, i] = -sin, sin
    return matrix


def torso_in_pelvis(position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where the waist [29 joint positions] holds the torso: offset [3] and rotation [3, 3] in the pelvis' frame."""
    yaw, roll, pitch = (float(position[index]) for index in _WAIST)
    return _WAIST_AT, _about(2, yaw) @ _about(0, roll) @ _about(1, pitch)
