"""Bootstrap intervals: by hand, against SciPy, and their coverage."""

import numpy as np
import pytest

from distrlcc.evaluation.bootstrap import link_intervals, mean_intervals


def test_known_cases() -> None:
    constant = np.full((1, 4, 3), 2.5)
    assert np.array_equal(mean_intervals(constant), [[2.5, 2.5, 2.5]])
    single = mean_intervals(np.array([[[7.0]]]))
    assert np.array_equal(single, [[7.0, np.nan, np.nan]], equal_nan=True)
    # Two links with means 0 and 1: a draw's mean is 0, 1/2 or 1 with chances 1/4, 1/2, 1/4.
    two = np.array([[[0.0, 0.0], [0.5, 1.5]]])
    assert np.array_equal(mean_intervals(two), [[0.5, 0.0, 1.0]])
    assert link_intervals(two).tolist() == [[[0.0, 0.0, 0.0], [1.0, 0.5, 1.5]]]


def test_seeds_of_a_link_stay_together() -> None:
    # Links agree, seeds differ wildly: no uncertainty about the mean over links.
    values = np.tile(np.array([-100.0, 100.0]), (1, 30, 1))
    assert np.array_equal(mean_intervals(values), [[0.0, 0.0, 0.0]])
    # A single link: its seeds are all there is.
    mean, low, high = mean_intervals(values[:, :1])[0]
    assert (mean, low, high) == (0.0, -100.0, 100.0)


def test_against_scipy() -> None:
    stats = pytest.importorskip("scipy.stats", reason="needs scipy")
    rng = np.random.default_rng(1)
    values = rng.exponential(size=(2, 80, 5))
    ours = mean_intervals(values)
    for row in range(2):
        reference = stats.bootstrap(
            (values[row].mean(axis=1),), np.mean, method="percentile", n_resamples=5000, rng=2
        ).confidence_interval
        assert ours[row, 0] == pytest.approx(values[row].mean())
        assert ours[row, 1:] == pytest.approx([reference.low, reference.high], abs=0.02)


def test_coverage_on_links_with_correlated_seeds() -> None:
    rng = np.random.default_rng(0)
    trials = 300
    links = rng.gamma(2.0, 0.5, size=(trials, 60, 1))  # the mean over links is 1
    values = links + rng.normal(0, 0.3, size=(trials, 60, 5))
    bounds = mean_intervals(values)
    held = np.mean((bounds[:, 1] <= 1.0) & (bounds[:, 2] >= 1.0))
    assert 0.905 <= held <= 0.975  # 0.95 less the percentile method's known optimism
    # The interval that pools all seeds as if they were links is too narrow, and is caught here.
    pooled = mean_intervals(values[:100].reshape(100, 300, 1))
    assert np.mean((pooled[:, 1] <= 1.0) & (pooled[:, 2] >= 1.0)) < 0.8


def test_undefined_values_are_left_out() -> None:
    rng = np.random.default_rng(4)
    values = rng.normal(size=(1, 40, 3))
    dead = values.copy()
    dead[0, 5] = np.nan
    left = mean_intervals(dead)[0]
    assert left[0] == pytest.approx(np.delete(values[0], 5, axis=0).mean())
    assert left[1] < left[0] < left[2]
    dead[0, 6, 1] = np.nan
    assert np.isfinite(mean_intervals(dead)).all()
    assert np.isnan(mean_intervals(np.full((1, 4, 2), np.nan))).all()
    assert np.isnan(link_intervals(dead)[0, 5]).all()
    assert np.isfinite(link_intervals(dead)[0, 6]).all()
    dead[0, 6, 2] = np.nan  # one is left, which has no interval
    assert np.isfinite(link_intervals(dead)[0, 6]).tolist() == [True, False, False]
    dead[0, 1:] = np.nan
    assert np.isfinite(mean_intervals(dead)[0]).tolist() == [True, False, False]
