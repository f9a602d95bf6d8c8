"""Methods by name, the change from moment matching to Monte Carlo, and its criterion."""

from __future__ import annotations

import pytest

from p3kernels import CovarianceMatching, LatentMean, MomentMatching, MonteCarlo, SharedNoise
from p3kernels.estimators import StoredComponent, parse_estimator
from p3kernels.estimators.protocol import estimator_types
from trainer.algorithms.methods import METHODS, parse_method
from trainer.algorithms.schedule import EstimatorSchedule, Plateau


@pytest.mark.parametrize(
    ("text", "phases"),
    [
        ("mm", [MomentMatching()]),
        ("mc", [MonteCarlo(15)]),
        ("mc(1)", [MonteCarlo(1)]),
        ("mc50", [MonteCarlo(50)]),
        ("mc(50)", [MonteCarlo(50)]),
        ("mc15-sobol", [MonteCarlo(15, "sobol")]),
        ("mc5-antithetic-common", [MonteCarlo(5, "antithetic", common=True)]),
        ("shared", [SharedNoise()]),
        ("vae", [MonteCarlo(1)]),
        ("vae-stored", [StoredComponent()]),
        ("p3", [MomentMatching(), MonteCarlo(15)]),
        ("p3(4)", [MomentMatching(), MonteCarlo(4)]),
        ("mm+mc15", [MomentMatching(), MonteCarlo(15)]),
        ("mm+shared", [MomentMatching(), SharedNoise()]),
        ("cm+mc50-common", [CovarianceMatching(), MonteCarlo(50, common=True)]),
        ("vae+mm+cm-diagonal", [MonteCarlo(1), MomentMatching(), CovarianceMatching("diagonal")]),
        ("z-mean", [LatentMean()]),
        ("ae", [LatentMean()]),
        ("spr", [LatentMean()]),
        ("simple-actor-critic", [LatentMean()]),
    ],
)
def test_method(text, phases):
    method = parse_method(text)
    assert list(method.phases) == phases
    assert (method.estimator, method.changes) == (phases[0], len(phases) - 1)
    assert parse_method(method.name) == method


@pytest.mark.parametrize("name", METHODS)
def test_every_name_is_a_method(name):
    assert parse_method(name).phases


def test_every_estimator_is_known_by_its_label():
    labels = ["mm", "z-mean", "shared", "vae-stored", "cm", "cm-diagonal", "cm-unscented", "mc3", "mc3-sobol-common"]
    assert [parse_estimator(label).label for label in labels] == labels
    for kind in estimator_types():
        assert parse_estimator(kind().label) == kind()


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
        "mc (15)",
        "mc15-common-sobol",
        "mc15-sobol-antithetic",
        "p3+shared",
        "mm+",
        "+mm",
        "mm++cm",
        "mm, cm",
        "ae+mc15",
        "shared(3)",
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
        ValueError, match=r"method: expected p3, p3\(N\), quiet, vae, .*spr, .* or phases joined by \+ of .*mm.* got "
    ):
        parse_method(text)


def test_a_near_miss_is_named():
    with pytest.raises(ValueError, match="did you mean 'z-mean'"):
        parse_method("zmean")


@pytest.mark.parametrize("text", ["mc(0)", "mc0-sobol", "mm+mc0", "p3(0)", "p3(00)"])
def test_no_samples(text):
    with pytest.raises(ValueError, match=r"method: expected at least one sample, got "):
        parse_method(text)


@pytest.mark.parametrize(
    ("text", "estimator"), [("mm", MomentMatching()), ("mc(3)", MonteCarlo(3)), ("spr", LatentMean())]
)
def test_a_fixed_method_never_changes(text, estimator):
    schedule = EstimatorSchedule(parse_method(text), 1, plateau=Plateau(2))
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


def test_every_phase_begins_at_its_iteration():
    schedule = EstimatorSchedule(parse_method("mm+cm+shared"), switch_at=(2, 4), plateau=Plateau(2))
    labels = []
    for iteration in range(1, 7):
        labels.append(schedule.estimator.label)
        schedule.advance(iteration, 1.0)
    assert labels == ["mm", "mm", "cm", "cm", "shared", "shared"]
    assert schedule.changed_at == [2, 4]
    schedule.step_back()
    assert schedule.estimator.label == "cm"


def test_every_phase_waits_for_a_plateau_of_its_own():
    schedule = EstimatorSchedule(parse_method("mm+cm+shared"), plateau=Plateau(3))
    changes = [schedule.advance(iteration, 1.0) for iteration in range(1, 9)]
    assert changes == [False, False, True, False, False, True, False, False]


def test_a_state_of_one_change_alone():
    """As an earlier version saved it."""
    schedule = EstimatorSchedule(parse_method("p3(7)"), switch_at=3)
    schedule.load_state_dict({"switched": True, "plateau": {"progress": [1.0]}})
    assert schedule.estimator == MonteCarlo(7)


@pytest.mark.parametrize(
    ("text", "switch_at", "message"),
    [
        ("mm+cm+shared", 3, r"switch_at: expected 2 iterations, one a change of mm\+cm\+shared, got 1"),
        ("p3", (3, 4), r"switch_at: expected 1 iterations, one a change of mm\+mc15, got 2"),
        ("p3", (), r"switch_at: expected 1 iterations"),
        ("mm+cm+shared", (4, 4), r"switch_at: expected rising iterations, got 4 4"),
        ("mm+cm+shared", (4, 2), r"switch_at: expected rising iterations, got 4 2"),
        ("mm+cm+shared", (-1, 2), r"switch_at: expected an iteration >= 0, got -1"),
    ],
)
def test_iterations_that_do_not_fit_the_phases(text, switch_at, message):
    with pytest.raises(ValueError, match=message):
        EstimatorSchedule(parse_method(text), switch_at)


def test_p3_from_the_first_iteration():
    schedule = EstimatorSchedule(parse_method("p3(7)"), switch_at=0)
    assert schedule.estimator == MonteCarlo(7)
    assert not schedule.advance(1, 1.0)


def test_p3_resumed_past_its_iteration_changes_at_once():
    schedule = EstimatorSchedule(parse_method("p3"), switch_at=3)
    assert schedule.advance(10, 1.0)
    assert schedule.estimator == MonteCarlo(15)


def answers(values: list[float], difficulty: float | None = None, window: int = 4, **plateau: float) -> list[bool]:
    criterion = Plateau(window, **plateau)
    return [criterion.update(value, difficulty) for value in values]


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


@pytest.mark.parametrize(
    ("difficulty", "expected"), [(None, True), (0.0, False), (0.89, False), (0.9, True), (1.0, True)]
)
def test_plateau_at_a_difficulty(difficulty, expected):
    assert answers([1.0] * 8, difficulty)[-1] == expected


def test_p3_waits_for_the_plateau_and_the_difficulty():
    schedule = EstimatorSchedule(parse_method("p3"), plateau=Plateau(4))
    assert not any(schedule.advance(iteration, 1.0 + iteration, 1.0) for iteration in range(1, 9))
    assert not any(schedule.advance(iteration, 9.0, 0.8) for iteration in range(9, 17))
    assert schedule.estimator == MomentMatching()
    assert schedule.advance(17, 9.0, 0.9)
    assert schedule.estimator == MonteCarlo(15)
    assert not any(schedule.advance(iteration, 9.0, 0.9) for iteration in range(18, 26))


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
