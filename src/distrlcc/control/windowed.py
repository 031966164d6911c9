"""Windowed minimum and maximum in six elements of a row (Kathleen Nichols' filter).

Linux's ``lib/win_minmax.c`` keeps the best, second best and third best sample of ever later parts
of the window, so that an expired best has a successor at once. A maximum is the minimum of the
negated samples.

A filter's place in the row is an ``np.int64``: for each plain constant numba would compile anew.
"""

from distrlcc.control.compiled import njit_inner
from distrlcc.types import FloatArray

FILTER_SIZE = 6  # elements that one filter takes: three pairs of value and time, best first


@njit_inner
def reset(s: FloatArray, first: int, time: float, value: float) -> None:
    """Forget all samples except ``value``; infinity means no sample yet."""
    s[first] = s[first + 2] = s[first + 4] = value
    s[first + 1] = s[first + 3] = s[first + 5] = time


@njit_inner
def running_min(s: FloatArray, first: int, window: float, time: float, value: float) -> float:
    """Take one sample and return the least in ``window``; six elements from ``first`` hold it."""
    if value <= s[first] or time - s[first + 5] > window:
        reset(s, first, time, value)
        return value
    if value <= s[first + 2]:
        s[first + 2] = s[first + 4] = value
        s[first + 3] = s[first + 5] = time
    elif value <= s[first + 4]:
        s[first + 4] = value
        s[first + 5] = time
    age = time - s[first + 1]
    if age > window:
        _promote(s, first, time, value)
        if time - s[first + 1] > window:
            _promote(s, first, time, value)
    elif s[first + 3] == s[first + 1] and age > window / 4:
        s[first + 2] = s[first + 4] = value
        s[first + 3] = s[first + 5] = time
    elif s[first + 5] == s[first + 3] and age > window / 2:
        s[first + 4] = value
        s[first + 5] = time
    return float(s[first])


@njit_inner
def running_max(s: FloatArray, first: int, window: float, time: float, value: float) -> float:
    """Take one sample and return the greatest of those no older than ``window``."""
    return -float(running_min(s, first, window, time, -value))


@njit_inner
def _promote(s: FloatArray, first: int, time: float, value: float) -> None:
    s[first] = s[first + 2]
    s[first + 1] = s[first + 3]
    s[first + 2] = s[first + 4]
    s[first + 3] = s[first + 5]
    s[first + 4] = value
    s[first + 5] = time
