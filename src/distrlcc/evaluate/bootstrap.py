"""Percentile-bootstrap intervals of means over links (Efron and Tibshirani 1993, chapter 13).

Links are drawn with replacement and a link's seeds stay together, since seeds of one link are not
independent evidence about other links. With a single link its seeds are drawn instead: such an
interval speaks of that link alone. A single value says nothing of how far others would lie from it:
there is no interval, and its bounds are NaN.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from distrlcc.types import FloatArray

RESAMPLES = 2000
CONFIDENCE = 0.95

_CHUNK = 4_000_000
"""Elements of one block of resampled means; bounds the memory to some 32 MB."""


def mean_intervals(values: FloatArray) -> FloatArray:
    """Return means over links and seeds with bootstrap intervals.

    The same links are drawn for all M rows, and for every call with the same sizes, so schemes are
    compared on the same draws.

    Args:
        values: ``[M, L, S]``. NaN means undefined: a seed is left out of its link's mean, a link
            without any out of the mean over links.

    Returns:
        ``[M, 3]``: mean, low, high; NaN where nothing is defined, and bounds of a single value.
    """
    units = _nanmean(values) if values.shape[1] > 1 else values[:, 0, :]  # [M, U]
    return _intervals(units, RESAMPLES)


def link_intervals(values: FloatArray) -> FloatArray:
    """Return each link's mean over its seeds, ``[M, L, S]``, with an interval, ``[M, L, 3]``."""
    rows = values.reshape(-1, values.shape[2])
    return _intervals(rows, RESAMPLES // 2).reshape(*values.shape[:2], 3)


@dataclass(frozen=True)
class Curves:
    """Learning curves of two ways of training from the same S seeds, in Q parts: ``[S, Q]``."""

    one: FloatArray
    other: FloatArray

    def intervals(self) -> tuple[FloatArray, FloatArray]:
        """Return mean, low and high over seeds of each part, ``[Q, 3]``, of one and the other."""
        one, other = (mean_intervals(curve.T[:, None, :]) for curve in (self.one, self.other))
        return one, other

    @property
    def agree(self) -> bool:
        """Whether each one's mean lies within the other's interval, in every part."""
        one, other = self.intervals()
        return bool(
            ((other[:, 1] <= one[:, 0]) & (one[:, 0] <= other[:, 2])).all()
            and ((one[:, 1] <= other[:, 0]) & (other[:, 0] <= one[:, 2])).all()
        )


def _intervals(units: FloatArray, resamples: int) -> FloatArray:
    """Bootstrap the mean of each row of ``units [R, U]``; returns ``[R, 3]``."""
    rows, count = units.shape
    result = np.full((rows, 3), np.nan)
    result[:, 0] = _nanmean(units)
    if count == 1:
        return result
    defined = np.isfinite(units)
    filled, whole = np.where(defined, units, 0.0), bool(defined.all())
    # How often each unit is drawn is multinomial, and a resampled mean is one product with that.
    share, draws = np.full(count, 1.0 / count), np.random.default_rng(0)
    weights = draws.multinomial(count, share, size=resamples).astype(np.float64)
    tail, step = (1.0 - CONFIDENCE) / 2, max(1, _CHUNK // resamples)
    for start in range(0, rows, step):
        part = slice(start, start + step)
        counts = float(count) if whole else weights @ defined[part].T.astype(np.float64)
        with np.errstate(invalid="ignore"):
            means = np.asarray(weights @ filled[part].T / counts)  # [resamples, step]
        if whole:
            result[part, 1:] = np.quantile(means, [tail, 1.0 - tail], axis=0).T
            continue
        # Draws without a defined unit have no mean, and a single unit has no interval.
        for row in np.flatnonzero(defined[part].sum(axis=1) > 1):
            found = means[:, row][np.isfinite(means[:, row])]
            result[start + row, 1:] = np.quantile(found, [tail, 1.0 - tail])
    return result


def _nanmean(values: FloatArray) -> FloatArray:
    """Mean over the last axis of what is defined; NaN, without a warning, where nothing is."""
    defined = np.isfinite(values)
    counts = defined.sum(axis=-1)
    sums = np.where(defined, values, 0.0).sum(axis=-1)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
