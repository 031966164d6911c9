from typing import Any

import numba
import numpy as np
import pytest

from distrlcc.control.windowed import FILTER_SIZE, reset, running_max, running_min

FIRST = np.int64(3)


@numba.njit
def extremes(window: float, times: Any, values: Any) -> Any:
    """Return the minima, the maxima, and what the minima's filter left in its row."""
    row, other = np.zeros(12), np.zeros(12)
    reset(row, FIRST, 0.0, np.inf)
    reset(other, FIRST, 0.0, np.inf)
    least, greatest = np.empty(len(times)), np.empty(len(times))
    for i in range(len(times)):
        least[i] = running_min(row, FIRST, window, times[i], values[i])
        greatest[i] = running_max(other, FIRST, window, times[i], values[i])
    return least, greatest, row


@pytest.mark.parametrize("seed", range(5))
def test_between_the_window_s_minimum_and_the_newest_sample(seed: Any) -> None:
    random = np.random.default_rng(seed)
    times = np.cumsum(random.exponential(1.0, 2000))
    values = random.uniform(10, 20, 2000) + 5 * np.sin(times / 30)
    found, _, state = extremes(10.0, times, values)
    for i, time in enumerate(times):
        recent = values[: i + 1][times[: i + 1] >= time - 10.0]
        assert recent.min() <= found[i] <= values[i]
        assert found[i] in recent
    exact = [values[: i + 1][times[: i + 1] >= t - 10.0].min() for i, t in enumerate(times)]
    assert np.mean(found == exact) > 0.8
    assert np.all(np.delete(state, np.arange(3, 3 + FILTER_SIZE)) == 0)


def test_an_old_minimum_expires() -> None:
    times = np.arange(30.0)
    values = np.where(times == 5, 1.0, 2.0)
    found, *_ = extremes(10.0, times, values)
    assert found[4] == 2
    assert all(found[5:16] == 1)
    assert all(found[16:] == 2)
    # A silence longer than the window forgets everything.
    found, *_ = extremes(10.0, np.array([0.0, 1.0, 50.0]), np.array([1.0, 2.0, 3.0]))
    assert list(found) == [1, 1, 3]


def test_maximum_mirrors_minimum() -> None:
    random = np.random.default_rng(7)
    times, values = np.arange(500.0), random.uniform(0, 1, 500)
    assert np.array_equal(extremes(10.0, times, values)[1], -extremes(10.0, times, -values)[0])
