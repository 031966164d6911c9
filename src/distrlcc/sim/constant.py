"""A constant rate as a trace: opportunities spread as evenly as whole milliseconds allow."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

_LONGEST_MS = 20_000
_MOST_LINES = 2_000_000


def constant_times(packets_per_ms: Fraction) -> NDArray[np.int64]:
    """Return the opportunities of a rate over one period, ms, not decreasing.

    The k-th stands in the first millisecond by whose end k packets' time has passed; one packet per
    ms is the trace ``1``. The rate is exact where a period of at most 20 s holds it, else to 1e-7.

    Args:
        packets_per_ms: Above 0.
    """
    rate = packets_per_ms.limit_denominator(_LONGEST_MS)
    # A very slow link has a long period; a very fast one a short one, for memory's sake.
    if rate == 0 or abs(rate / packets_per_ms - 1) > Fraction(1, 10**7):
        rate = 1 / (1 / packets_per_ms).limit_denominator(_LONGEST_MS)
    if rate.numerator > _MOST_LINES:
        rate = packets_per_ms.limit_denominator(max(int(_MOST_LINES / packets_per_ms), 1))
    count = np.arange(1, rate.numerator + 1, dtype=object)
    return np.array([-(-int(k) * rate.denominator // rate.numerator) for k in count], np.int64)
