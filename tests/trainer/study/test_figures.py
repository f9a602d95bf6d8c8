"""Curves of a figure have few points, which are means of the run's."""

from __future__ import annotations

import numpy as np

from trainer.study.figures import MOST_POINTS, _thinned


def test_curves_are_thinned_by_means_of_what_is_there():
    found = _thinned(np.array([np.nan, np.nan, *np.arange(4.0 * MOST_POINTS)]))
    assert len(found) == MOST_POINTS
    assert found[0] == 1.0
    assert found[-1] == 4 * MOST_POINTS - 2.5
    assert np.isnan(_thinned(np.array([np.nan, 1.0]))[0])
    np.testing.assert_array_equal(_thinned(np.arange(7.0)), np.arange(7.0))
