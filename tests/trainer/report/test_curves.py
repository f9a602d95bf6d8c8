"""The curves of a report: what is drawn of any numbers."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from trainer.report import curve


def drawn(series, changes):
    """The figure's elements by their class, circles by their name, and its texts."""
    figure = ET.fromstring(curve.draw(series, changes))
    found = {"texts": [element.text for element in figure if element.tag.endswith("text")]}
    for element in figure:
        name = element.get("class") or element.tag.rpartition("}")[2]
        found.setdefault(name, []).append(element)
    return found


def points(line):
    return [tuple(map(float, pair.split(","))) for pair in line.get("points").split()]


def test_lines_of_a_figure():
    series = curve.Series("loss/kl", list(range(1, 81)), [float(i % 2) for i in range(80)])
    found = drawn(series, [(1, "MM"), (31, "MC(15)")])
    (raw,), (smoothed,), (dashed, name) = found["measured"], found["smoothed"], found["change"]
    at, height = zip(*points(raw), strict=True)
    assert len(at) == 80
    assert list(at) == sorted(at)
    low, high = height[0], height[1]
    assert low > high  # of a picture the top is 0
    assert list(height) == [low, high] * 40
    assert float(raw.get("stroke-width")) < float(smoothed.get("stroke-width"))
    mean = [value for _, value in points(smoothed)]
    assert mean[10] == pytest.approx(low + (high - low) * 2 / 5, abs=0.1)  # 0 1 0 1 0 around it
    assert mean[0] == pytest.approx(low + (high - low) / 3, abs=0.1)
    assert dashed.get("d").startswith(f"M{at[30]} ")
    assert dashed.get("stroke-dasharray")
    assert name.text == "MC(15)"
    assert {"0.0", "1.0", "20", "80", "iteration"} <= set(found["texts"])


def test_changes_that_would_hide_the_curve_are_left_out():
    changes = [(at, f"MC({at})") for at in range(1, 21)]
    assert "change" not in drawn(curve.Series("loss/kl", [1, 20], [0.0, 1.0]), changes)


def test_a_long_curve_is_thinned_but_keeps_its_ends_and_spikes():
    values = [0.0] * 10_000
    values[1234], values[5678], values[0], values[-1] = 5.0, -7.0, 0.5, 0.25
    values[1] = values[-2] = 1.0  # the ends are kept for being the ends
    iterations, kept = curve.thinned(range(1, 10_001), values, 100)
    assert len(kept) <= 100
    assert (iterations[0], kept[0], iterations[-1], kept[-1]) == (1, 0.5, 10_000, 0.25)
    assert dict(zip(iterations, kept, strict=True)).items() >= {1235: 5.0, 5679: -7.0}.items()
    assert iterations == sorted(set(iterations))


def test_one_point_is_a_dot():
    found = drawn(curve.Series("loss/kl", [7], [0.5]), [(7, "MM")])
    assert len(found["circle"]) == 1
    assert not {"measured", "smoothed", "change"} & found.keys()
    assert {"6", "7", "8"} <= set(found["texts"])


def test_a_constant_is_drawn_as_one():
    assert curve.Series("loss/kl", [1, 2, 3], [0.1, 0.1, 0.1 + 1e-13]).limits() == pytest.approx((0.09, 0.11))


@pytest.mark.parametrize(
    "values",
    [
        [0.0, 0.0],
        [-1.7e308, 1.7e308],
        [5e-324, 1e-320],
        [1e300, 1e300],
        [1e15, 1e15 + 2e9],
        [3.1e-5, 4.2e-5],
        [-3.0, 2.5e6],
    ],
    ids=str,
)
def test_any_numbers_are_drawn_within_the_picture(values):
    found = drawn(curve.Series("loss/kl", [1, 1_000_000], values), [(1, "mm"), (900_000, "<mc15>")])
    for line in (*found["measured"], *found["smoothed"]):
        for x, y in points(line):
            assert 0 <= x <= curve.WIDTH
            assert 0 <= y <= curve.HEIGHT
    assert "<mc15>" in found["texts"]
    assert all(len(text) <= 9 for text in found["texts"])  # what there is room for


@pytest.mark.parametrize(
    ("limits", "expected"),
    [((0.0, 1.0), [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]), ((-3.0, 14.0), [0.0, 5.0, 10.0]), ((0.9, 3.1), [1.0, 2.0, 3.0])],
)
def test_numbers_at_an_axis_are_round(limits, expected):
    assert curve.ticks(*limits, 6, least_step=1.0 if limits[0] == 0.9 else 0.0) == pytest.approx(expected)
