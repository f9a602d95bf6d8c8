"""Alarms of a training: when they ring, that they ring once, and that they ring again."""

from __future__ import annotations

import pytest

from trainer.training.alarms import CLIPPED_ITERATIONS, Alarms

FINE = {
    "loss/clip_fraction": 0.3,
    "loss/learning_rate": 1e-3,
    "d_eff/trained": 0.9,
    "policy/active_latents": 7.0,
}


def alarms() -> Alarms:
    return Alarms((1e-5, 1e-2))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"d_eff/trained": 0.12}, "alarm: D_eff is 12 % with mc15: its own noise clips most rows"),
        ({"loss/learning_rate": 1e-5}, "alarm: the learning rate is at its bound of 1e-05"),
        ({"loss/learning_rate": 1e-2}, "alarm: the learning rate is at its bound of 1e-02"),
        ({"policy/active_latents": 0.0}, "alarm: no latent is active: the encoder tells the policy nothing"),
    ],
)
def test_rings_once_and_again_after_it_had_gone(change, text):
    one = alarms()
    assert one.messages(FINE, "mc15", switched=True) == []
    assert one.messages({**FINE, **change}, "mc15", switched=True) == [text]
    assert one.messages({**FINE, **change}, "mc15", switched=True) == []
    without = {name: value for name, value in FINE.items() if name not in change}
    assert one.messages(without, "mc15", switched=True) == []  # not measured: as before
    assert one.messages({**FINE, **change}, "mc15", switched=True) == []
    assert one.messages(FINE, "mc15", switched=True) == []
    assert one.messages({**FINE, **change}, "mc15", switched=True) == [text]


def test_data_efficiency_is_an_alarm_after_a_switch_alone():
    one = alarms()
    assert one.messages({"d_eff/trained": 0.1}, "vae", switched=False) == []
    assert len(one.messages({"d_eff/trained": 0.1}, "vae", switched=True)) == 1


def test_clipping_rings_after_ten_iterations_in_a_row():
    one, heavy = alarms(), {"loss/clip_fraction": 0.8}
    told = [one.messages(heavy, "mc15", switched=False) for _ in range(CLIPPED_ITERATIONS - 1)]
    assert one.messages({"loss/clip_fraction": 0.4}, "mc15", switched=False) == []
    told += [one.messages(heavy, "mc15", switched=False) for _ in range(CLIPPED_ITERATIONS - 1)]
    assert not any(told)
    assert one.messages(heavy, "mc15", switched=False) == [
        "alarm: 80 % of the ratios are clipped, more than half for 10 iterations"
    ]
    assert one.messages(heavy, "mc15", switched=False) == []


def rung(one: Alarms, stds: list[float]) -> list[str]:
    return [text for std in stds for text in one.messages({"policy/action_std": std}, "cm", switched=False)]


def test_an_exploration_that_only_grows_rings_once_and_again_after_it_fell():
    one, growing = alarms(), [0.6 * 1.05**i for i in range(40)]
    growing[30] = growing[28]  # a step back within a rise
    assert rung(one, growing) == [
        "alarm: the exploration std is 1.52, at the beginning it was 0.60, and it rose over the last 20 iterations"
    ]
    assert rung(one, [2.0, *[4.0] * 20]) == []
    assert len(rung(one, [4.0 + 0.1 * i for i in range(20)])) == 1


@pytest.mark.parametrize(
    "stds",
    [
        [0.6 * 1.01**i for i in range(60)],  # less than twice
        [0.6, *[1.5 + 0.1 * (i % 7) for i in range(60)]],  # large, and held
        [0.0] * 30,
    ],
)
def test_an_exploration_with_an_end_does_not_ring(stds):
    assert rung(alarms(), stds) == []


def test_what_a_method_does_not_have_is_not_looked_at():
    assert alarms().messages({}, "z-mean", switched=True) == []
