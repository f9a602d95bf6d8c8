"""Settings resolved: nothing left to fill in, nothing that can be changed, and what a method takes is a class."""

from __future__ import annotations

import dataclasses
import typing

import pytest

from trainer.algorithms.method import Method
from trainer.algorithms.methods import parse_method
from trainer.algorithms.presets import resolve
from trainer.config import ActorConfig, EncoderConfig, ModelConfig, ResolvedConfig, TrainConfig

GIVEN = TrainConfig(task="walker-parkour", method="p3", num_envs=64)


def narrowed(kind: type) -> list[str]:
    """The settings that a resolved class declares anew, without None."""
    return list(kind.__annotations__)


@pytest.mark.parametrize("preset", ["cpu", "paper"])
def test_what_a_resolved_class_declares_is_filled_in(preset):
    resolved = resolve(dataclasses.replace(GIVEN, preset=preset))
    for part in (resolved, resolved.ppo, resolved.model):
        for name in narrowed(type(part)):
            assert getattr(part, name) is not None, name
            assert "None" not in str(typing.get_type_hints(type(part))[name]), name


def test_settings_cannot_be_changed():
    resolved = resolve(GIVEN)
    for part in (GIVEN, resolved, resolved.ppo, resolved.model):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(part, dataclasses.fields(part)[0].name, None)


def test_resolved_settings_given_again_are_the_same():
    resolved = resolve(GIVEN)
    again = resolved.given()
    assert type(again) is TrainConfig
    assert resolve(again) == resolved
    assert isinstance(resolve(resolved), ResolvedConfig)
    assert resolve(resolved) == resolved


@pytest.mark.parametrize(
    ("method", "options", "distribution"),
    [
        ("mm", ModelConfig, True),
        ("vae", ModelConfig, True),
        ("spr", EncoderConfig, False),
        ("ae", EncoderConfig, False),
    ],
)
def test_what_a_method_takes(method, options, distribution):
    found = parse_method(method)
    assert isinstance(found, Method)
    assert found.options is options
    assert found.has_latent_distribution is distribution
    assert parse_method("simple-actor-critic").options is ActorConfig
