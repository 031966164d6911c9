"""Time in buckets: what a flow did in steps of any length, summed up for a series."""

from __future__ import annotations

import numpy as np

from distrlcc.types import FloatArray

BUCKET_S = 0.1
MAX_BUCKETS = 150
"""What lasts long has longer buckets, so that its lines can be told apart."""


def bucket_edges(seconds: float) -> FloatArray:
    """Return the edges of a series' buckets ``[B + 1]``, s; the last one may be shorter."""
    bucket = max(BUCKET_S, seconds / MAX_BUCKETS)
    return np.append(np.arange(0.0, seconds - 1e-9, bucket), seconds)


def totals(edges: FloatArray, ends: FloatArray, values: FloatArray) -> FloatArray:
    """Sum over buckets; a step that lies in several is spread over them evenly.

    Args:
        edges: Of the buckets, ``[B + 1]``, s.
        ends: When each step ended, ``[T]``, s; the first began at 0.
        values: Of each step, ``[T]``.

    Returns:
        ``[B]``; 0 after the last step.
    """
    sums = np.concatenate([[0.0], np.cumsum(values)])
    return np.diff(np.interp(edges, np.concatenate([[0.0], ends]), sums))
