"""Percentile-bootstrap intervals of means over links (Efron and Tibshirani 1993, chapter 13).

Links are drawn with replacement and a link's seeds stay together, since seeds of one link are not
independent evidence about other links. With a single link its seeds are drawn instead: such an
interval speaks of that link alone. A single value has no interval, and its bounds are NaN.
"""

import numpy as np

from distrlcc.evaluation.scores import defined_means
from distrlcc.types import FloatArray

RESAMPLES = 2000
CONFIDENCE = 0.95

_CHUNK = 4_000_000  # elements of one block of resampled means; bounds the memory to some 32 MB


def mean_intervals(values: FloatArray) -> FloatArray:
    """Return means over links and seeds, ``[M, L, S]``, with bootstrap intervals: mean, low, high.

    They are ``[M, 3]``. The same links are drawn for all rows, and in every call with the same
    sizes: schemes are compared on the same draws. NaN means undefined. Undefined seeds are left out
    of a link's mean, and links without any out of the mean over links.
    """
    units = defined_means(values) if values.shape[1] > 1 else values[:, 0, :]  # [M, U]
    return _intervals(units, RESAMPLES)


def link_intervals(values: FloatArray) -> FloatArray:
    """Return each link's mean over its seeds, ``[M, L, S]``, with an interval, ``[M, L, 3]``."""
    rows = values.reshape(-1, values.shape[2])
    return _intervals(rows, RESAMPLES // 2).reshape(*values.shape[:2], 3)


def _intervals(units: FloatArray, resamples: int) -> FloatArray:
    """Bootstrap the mean of each row of ``units [R, U]``; returns ``[R, 3]``."""
    count = units.shape[1]
    result = np.full((len(units), 3), np.nan)
    result[:, 0] = defined_means(units)
    defined = np.isfinite(units)
    filled = np.where(defined, units, 0.0)
    # How often each unit is drawn is multinomial, and a resampled mean is one product with that.
    share, draws = np.full(count, 1.0 / count), np.random.default_rng(0)
    weights = draws.multinomial(count, share, size=resamples).astype(np.float64)
    tail, step = (1.0 - CONFIDENCE) / 2, max(1, _CHUNK // resamples)
    several = np.flatnonzero(defined.sum(axis=1) > 1)  # a single unit has no interval
    for part in np.array_split(several, -(-len(several) // step) or 1):
        with np.errstate(invalid="ignore"):  # draws without a defined unit have no mean
            means = weights @ filled[part].T / (weights @ defined[part].T.astype(np.float64))
        quantile = np.quantile if defined[part].all() else np.nanquantile
        result[part, 1:] = quantile(means, [tail, 1.0 - tail], axis=0).T
    return result
