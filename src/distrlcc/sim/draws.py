"""What generated suites draw from: uniform numbers named by suite, split and index."""

from __future__ import annotations

import numpy as np

from distrlcc.errors import unknown_name
from distrlcc.seeding import stream_key, uniform
from distrlcc.types import PACKET_BYTES

SPLITS = ("train", "validation", "test")


def draws(suite: str, split: str, index: int, count: int) -> list[float]:
    """Return uniform numbers in [0, 1); the same name draws the same everywhere.

    Raises:
        ConfigError: There is no such split.
    """
    if split not in SPLITS:
        raise unknown_name("split", split, SPLITS)
    key = stream_key(0, f"suite/{suite}/{split}")
    return [float(u) for u in uniform(key, index, np.arange(count))]


def between(u: float, low: float, high: float) -> float:
    """Return the log-uniform number in [low, high) that ``u`` in [0, 1) stands for."""
    return float(low * (high / low) ** u)


def bdp_packets(rate_mbps: float, rtt_ms: float) -> float:
    """Return a bandwidth-delay product in packets."""
    return rate_mbps * rtt_ms * 1e3 / (8 * PACKET_BYTES)
