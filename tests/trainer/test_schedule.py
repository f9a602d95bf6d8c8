"""Methods by name, the change from moment matching to Monte Carlo, and its criterion."""

from __future__ import annotations

import pytest

from p3kernels import LatentMean, MomentMatching, MonteCarlo
from trainer.algorithms.methods import METHODS, parse_method
from trainer.algorithms.schedule import EstimatorSchedule, Plateau


@pytest.mark.parametrize(
    ("text", "estimator", "then"),
    [
        ("mm", MomentMatching(), None),
        ("mc", MonteCarlo(15), None),
        ("mc(1)", MonteCarlo(1), None),
        ("mc(50)", MonteCarlo(50), None),
        ("vae", MonteCarlo(1), None),
        ("p3", MomentMatching(), MonteCarlo(15)),
        ("p3(4)", MomentMatching(), MonteCarlo(4)),
        ("z-mean", LatentMean(), None),
        ("ae", LatentMean(), None),
        ("spr", LatentMean(), None),
        ("simple-actor-critic", LatentMean(), None),
    ],
)
def test_method(text, estimator, then):
    method = parse_method(text)
    assert (method.estimator, method.then) == (estimator, then)
    assert parse_method(method.name) == method
    assert text.split("(")[0] in METHODS


@pytest.mark.parametrize(
    "text",
    [
        "",
        "MM",
        "mm(3)",
        "mm()",
        "mc()",
        "mc(-1)",
        "mc(1.5)",
        "mc(15",
        "mc15",
        "mc (15)",
        " mc",
        "mc\n",
        "vae(2)",
        "ppo",
        "ae(1)",
        "SPR",
    ],
)
def test_no_method(text):
    with pytest.raises(
        ValueError, match=r"method: expected p3, p3\(N\), mc, mc\(N\), mm, cm, .*vae, z-mean, ae, spr, .* got "
    ):
        parse_method(text)


def test_a_near_miss_is_named():
    with pytest.raises(ValueError, match="did you mean 'z-mean'"):
        parse_method("zmean")


@pytest.mark.parametrize("text", ["mc(0)", "p3(0)", "p3(00)"])
def test_no_samples(text):
    with pytest.raises(ValueError, match=r"method: expected at least one sample, got "):
        parse_method(text)


@pytest.mark.parametrize(
    ("text", "estimator"), [("mm", MomentMatching()), ("mc(3)", MonteCarlo(3)), ("spr", LatentMean())]
)
def test_a_fixed_method_never_changes(text, estimator):
    schedule = EstimatorSchedule(parse_method(text), switch_at=1, plateau=Plateau(2))
    for iteration in range(1, 6):
        assert schedule.estimator == estimator
        assert not schedule.advance(iteration, 1.0)
    assert schedule.estimator == estimator


def test_p3_changes_once_at_its_iteration():
    schedule = EstimatorSchedule(parse_method("p3(7)"), switch_at=3, plateau=Plateau(2))
    changes, estimators = [], []
    for iteration in range(1, 7):  # flat progress: the plateau's answer must not count
        estimators.append(schedule.estimator)
        changes.append(schedule.advance(iteration, 1.0))
    assert changes == [False, False, True, False, False, False]
    assert estimators == [MomentMatching()] * 3 + [MonteCarlo(7)] * 3


def test_p3_from_the_first_iteration():
    schedule = EstimatorSchedule(parse_method("p3(7)"), switch_at=0)
    assert schedule.estimator == MonteCarlo(7)
    assert not schedule.advance(1, 1.0)


def test_p3_resumed_past_its_iteration_changes_at_once():
    schedule = EstimatorSchedule(parse_method("p3"), switch_at=3)
    assert schedule.advance(10, 1.0)
    assert schedule.estimator == MonteCarlo(15)


def answers(values: list[float], level: float | None = None, window: int = 4, **plateau: float) -> list[bool]:
    criterion = Plateau(window, **plateau)
    return [criterion.update(value, level) for value in values]


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_plateau(sign):
    rising = [sign * 10.0 + 0.1 * step for step in range(12)]
    assert not any(answers(rising))  # 0.2 above half a window before, more than 1 % of 10
    assert answers([sign * 10.0] * 6) == [False] * 3 + [True] * 3
    assert answers([sign * 10.0 - step for step in range(6)])[3:] == [True] * 3


def test_plateau_tolerance():
    """Means of the halves 10 and 10.09, then 10.11: 1 % of the larger is 0.101."""
    assert answers([10.0, 10.0, 10.09, 10.09])[-1]
    assert not answers([10.0, 10.0, 10.11, 10.11])[-1]
    assert answers([10.0, 10.0, 10.11, 10.11], tolerance=0.02)[-1]


def test_plateau_of_an_odd_window():
    """[0, 9] against [3, 3, 3]: means 4.5 and 3; and [0, 3] against [3, 3, 3]: 1.5 and 3."""
    assert answers([0.0, 9.0, 3.0, 3.0, 3.0], window=5) == [False] * 4 + [True]
    assert not answers([0.0, 3.0, 3.0, 3.0, 3.0], window=5)[-1]


def test_plateau_looks_at_the_last_window_only():
    rising = [float(step) for step in range(1, 11)]
    found = answers([*rising, 10.0, 10.0, 10.0])
    assert found == [False] * 12 + [True]


@pytest.mark.parametrize(("level", "expected"), [(None, True), (0.0, False), (4.49, False), (4.5, True), (5.0, True)])
def test_plateau_at_a_level(level, expected):
    assert answers([1.0] * 8, level)[-1] == expected


def test_p3_waits_for_the_plateau_and_the_level():
    schedule = EstimatorSchedule(parse_method("p3"), plateau=Plateau(4))
    assert not any(schedule.advance(iteration, 1.0 + iteration, 5.0) for iteration in range(1, 9))
    assert not any(schedule.advance(iteration, 9.0, 4.0) for iteration in range(9, 17))
    assert schedule.estimator == MomentMatching()
    assert schedule.advance(17, 9.0, 4.5)
    assert schedule.estimator == MonteCarlo(15)
    assert not any(schedule.advance(iteration, 9.0, 4.5) for iteration in range(18, 26))


@pytest.mark.parametrize("saved_after", range(1, 11))
def test_state_dict(saved_after):
    """Progress that levels off at the sixth of ten iterations; saved and restored at each of them."""
    progress = [1.0, 2.0, 3.0, 4.0, 5.0, 5.0, 5.0, 5.0, 5.0, 5.0]

    def fresh() -> EstimatorSchedule:
        return EstimatorSchedule(parse_method("p3(3)"), plateau=Plateau(4))

    whole = fresh()
    expected = [whole.advance(step + 1, value) for step, value in enumerate(progress)]
    assert expected.count(True) == 1
    first, second = fresh(), fresh()
    got = [first.advance(step + 1, value) for step, value in enumerate(progress[:saved_after])]
    second.load_state_dict(first.state_dict())
    assert second.estimator == first.estimator
    got += [second.advance(step + 1, value) for step, value in enumerate(progress) if step >= saved_after]
    assert got == expected


def test_state_dict_is_a_copy():
    plateau = Plateau(3)
    plateau.update(1.0, None)
    state = plateau.state_dict()
    plateau.update(2.0, None)
    assert state == {"progress": [1.0]}


@pytest.mark.parametrize(("method", "other"), [("mc(3)", "mm"), ("mm", "mc(3)"), ("mm", "p3(3)"), ("mc(3)", "p3(3)")])
def test_a_fixed_method_keeps_its_estimator_after_another_ones_checkpoint(method, other):
    """Fine-tuning with --method mc from a checkpoint of mm must train by Monte Carlo, and the other way round."""
    source = EstimatorSchedule(parse_method(other), switch_at=1)
    source.advance(1, 1.0)
    target = EstimatorSchedule(parse_method(method))
    expected = target.estimator
    target.load_state_dict(source.state_dict())
    assert target.estimator == expected


def test_bad_arguments():
    with pytest.raises(ValueError, match=r"plateau_window: expected at least 2, got 1"):
        Plateau(1)
    with pytest.raises(ValueError, match=r"switch_at: expected an iteration >= 0, got -1"):
        EstimatorSchedule(parse_method("p3"), switch_at=-1)
