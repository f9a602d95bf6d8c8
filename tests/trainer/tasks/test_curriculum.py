"""The promote/demote rule on numbers worked out by hand, and what a checkpoint has to bring back."""

from __future__ import annotations

import math

import pytest
import torch

from trainer.tasks.curriculum import Curriculum


def curriculum(
    num_envs: int = 10, num_types: int = 3, num_levels: int = 4, seed: int = 0, **options: int | bool
) -> Curriculum:
    return Curriculum(num_envs, num_types, num_levels, torch.Generator().manual_seed(seed), **options)


def at(levels: list[int], num_levels: int = 4, **options: int | bool) -> Curriculum:
    """One type, its environments at these levels."""
    made = curriculum(len(levels), 1, num_levels, **options)
    made.load_state_dict(
        {"position": torch.tensor(levels), "terrain_type": torch.zeros(len(levels), dtype=torch.int64)}
    )
    return made


def flags(text: str) -> torch.Tensor:
    return torch.tensor([character == "x" for character in text], dtype=torch.bool)


def test_types_are_even_and_shuffled():
    made = curriculum(100, 7)
    counts = torch.bincount(made.terrain_type, minlength=7)
    assert sorted(counts.tolist()) == [14] * 5 + [15] * 2
    assert made.terrain_type.dtype == torch.int64
    assert not torch.equal(made.terrain_type, torch.arange(100) % 7)


def test_generator_decides():
    first, again, other = (curriculum(50, 3, 10, seed, max_first_level=5) for seed in (1, 1, 2))
    assert torch.equal(first.position, again.position)
    assert torch.equal(first.terrain_type, again.terrain_type)
    assert not torch.equal(first.position, other.position)
    assert not torch.equal(first.terrain_type, other.terrain_type)


def test_initial_levels():
    assert curriculum().position.tolist() == [0] * 10
    assert curriculum(200, max_first_level=2).position.unique().tolist() == [0, 1, 2]
    assert curriculum(200, max_first_level=3).position.dtype == torch.int64


def test_update():
    made = at([0, 1, 2, 3, 0, 1, 2, 3, 2, 1])
    made.update(torch.arange(10), traversed=flags("xxxx......"), failed=flags("....xxxx.."))
    assert made.position.tolist() == [1, 2, 3, 4, 0, 0, 1, 2, 2, 1]


def test_who_has_traversed_the_last_level_meets_all_levels():
    made = at([2, 3, 4, 4, 4])
    everyone, uniform = torch.arange(5), torch.tensor([0.9, 0.9, 0.0, 0.49, 0.999])
    assert made.draw_level(everyone, uniform).tolist() == [2, 3, 0, 1, 3]
    assert made.difficulty().tolist() == pytest.approx([2 / 3, 1, 1, 1, 1])
    made.update(everyone, flags(".xx.."), flags("x..x."))
    assert made.position.tolist() == [1, 4, 4, 3, 4]


def test_without_redrawing_the_last_level_holds_who_has_traversed_it():
    made = at([2, 3], redraw_solved=False)
    for _ in range(3):
        made.update(torch.arange(2), flags("xx"), flags(".."))
    assert made.position.tolist() == [3, 3]
    assert made.draw_level(torch.arange(2), torch.zeros(2)).tolist() == [3, 3]


def test_both_is_a_promotion():
    made = at([0, 1, 3])
    made.update(torch.arange(3), flags("xxx"), flags("xxx"))
    assert made.position.tolist() == [1, 2, 4]


def test_only_the_named_environments_move():
    made = at([1, 1, 1, 1, 1])
    made.update(torch.tensor([4, 0, 2]), flags("x.."), flags(".x."))
    assert made.position.tolist() == [0, 1, 1, 1, 2]
    made.update(torch.zeros(0, dtype=torch.int64), flags(""), flags(""))
    assert made.position.tolist() == [0, 1, 1, 1, 2]


def test_types_stay_and_arguments_are_not_written():
    made = curriculum()
    types = made.terrain_type.clone()
    arguments = torch.arange(10), flags("x.x.x.x.x."), flags(".xxx.xxx.x")
    before = [argument.clone() for argument in arguments]
    made.update(*arguments)
    assert made.position.sum() > 0
    assert torch.equal(made.terrain_type, types)
    assert all(map(torch.equal, arguments, before))


def test_one_level_is_the_only_one():
    made = at([0, 0], num_levels=1, redraw_solved=False)
    made.update(torch.arange(2), flags("x."), flags(".x"))
    assert made.position.tolist() == [0, 0]


def test_means():
    made = curriculum(5, 3, 11)
    made.load_state_dict({"position": torch.tensor([1, 2, 11, 4, 6]), "terrain_type": torch.tensor([0, 0, 1, 0, 1])})
    assert made.difficulty().tolist() == pytest.approx([0.1, 0.2, 1.0, 0.4, 0.6])
    means, counts = made.difficulty_by_type()
    assert means[:2] == pytest.approx([0.7 / 3, 0.8])
    assert math.isnan(means[2])
    assert counts == [3, 2, 0]


def test_state_comes_back():
    made, other = curriculum(20, max_first_level=3), curriculum(20, seed=9)
    state = made.state_dict()
    expected = {name: tensor.clone() for name, tensor in state.items()}
    other.load_state_dict(state)
    other.update(torch.arange(20), flags("x" * 20), flags("." * 20))
    made.update(torch.arange(20), flags("x" * 20), flags("." * 20))
    assert torch.equal(other.position, made.position)
    assert torch.equal(other.terrain_type, made.terrain_type)
    assert not torch.equal(made.position, expected["position"])
    assert all(torch.equal(state[name], expected[name]) for name in ("position", "terrain_type")), "a state is a copy"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_envs": 0}, "num_envs: expected at least 1, got 0"),
        ({"num_types": 0}, "num_types: expected at least 1, got 0"),
        ({"num_levels": -1}, "num_levels: expected at least 1, got -1"),
        ({"max_first_level": 4}, r"max_first_level: expected a level in \[0, num_levels = 4\), got 4"),
        ({"max_first_level": -1}, r"max_first_level: expected a level in \[0, num_levels = 4\), got -1"),
    ],
)
def test_bad_sizes(changes, message):
    with pytest.raises(ValueError, match=message):
        curriculum(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"env_ids": [0, 1]}, "env_ids: expected a tensor, got list"),
        ({"env_ids": torch.tensor([0.0, 1.0])}, "env_ids: expected torch.int64, got torch.float32"),
        ({"env_ids": torch.tensor([[0, 1]])}, r"env_ids: expected one dimension, got shape \[1, 2\]"),
        ({"env_ids": torch.tensor([0, 3])}, r"env_ids: expected values in \[0, 3\), got 3"),
        ({"env_ids": torch.tensor([-1, 2])}, r"env_ids: expected values in \[0, 3\), got -1"),
        ({"traversed": torch.tensor([0, 1])}, "traversed: expected torch.bool, got torch.int64"),
        ({"traversed": flags("x")}, r"traversed: expected shape \[2\], got shape \[1\]"),
        ({"failed": torch.tensor([0.0, 1.0])}, "failed: expected torch.bool, got torch.float32"),
        ({"failed": flags("x..")}, r"failed: expected shape \[2\], got shape \[3\]"),
    ],
)
def test_bad_updates(changes, message):
    made = at([1, 1, 1])
    with pytest.raises(ValueError, match=message):
        made.update(**{"env_ids": torch.tensor([0, 1]), "traversed": flags("x."), "failed": flags(".x")} | changes)
    assert made.position.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"more": torch.zeros(3)}, "curriculum: expected position, terrain_type, got position, terrain_type, more"),
        ({"position": torch.tensor([0, 1])}, r"curriculum: position: expected shape \[3\], got shape \[2\]"),
        ({"position": torch.tensor([0, 1, 5])}, r"curriculum: position: expected values in \[0, 5\), got 5"),
        ({"position": torch.zeros(3)}, r"curriculum: position: expected torch.int64, got torch.float32"),
        ({"terrain_type": torch.tensor([0, 1, -1])}, r"curriculum: terrain_type: expected values in \[0, 2\), got -1"),
    ],
)
def test_bad_states(changes, message):
    made = curriculum(3, 2)
    before = made.state_dict()
    with pytest.raises(ValueError, match=message):
        made.load_state_dict({"position": torch.tensor([1, 2, 3]), "terrain_type": torch.tensor([1, 1, 1])} | changes)
    assert all(torch.equal(made.state_dict()[name], before[name]) for name in before)


def test_missing_state():
    with pytest.raises(
        ValueError, match=r"curriculum: expected position, terrain_type, got level; a run of an earlier version"
    ):
        curriculum().load_state_dict({"level": torch.zeros(10, dtype=torch.int64)})
