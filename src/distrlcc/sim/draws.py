"""What suites draw a link's parameters with: numbers named by suite, split and index."""

from __future__ import annotations

import numpy as np

from distrlcc.errors import unknown_name
from distrlcc.seeding import stream_key, uniform
from distrlcc.types import PACKET_BYTES

SPLITS = ("train", "validation", "test")


def draws(suite: str, split: str, index: int, count: int) -> list[float]:
    """Return ``count`` uniforms in [0, 1) for one scenario of a suite.

    Raises:
        ConfigError: There is no such split.
    """
    if split not in SPLITS:
        raise unknown_name("split", split, SPLITS)
    key = stream_key(0, f"suite/{suite}/{split}")
    return [float(u) for u in uniform(key, index, np.arange(count))]


def between(u: float, low: float, high: float) -> float:
    """Return the value at ``u`` in [0, 1] of a log-uniform distribution."""
    return float(low * (high / low) ** u)


def bdp_packets(rate_mbps: float, rtt_ms: float) -> float:
    """Return a bandwidth-delay product in packets."""
    return rate_mbps * rtt_ms * 1e3 / (8 * PACKET_BYTES)
