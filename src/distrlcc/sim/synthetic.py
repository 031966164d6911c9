"""Generated traces: cellular-like links and Poisson links, from a seed.

The cellular generator follows the model behind Sprout (Winstein, Sivaraman, Balakrishnan, NSDI
2013, section 3.1): packets leave in a Poisson process whose rate wanders in Brownian motion, with
outages that last a random time. The wandering is of the rate's logarithm, pulled back to a mean
that differs from trace to trace, which is close to what the recorded traces show.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from distrlcc.errors import TraceError
from distrlcc.types import PACKET_BYTES

CELLULAR_SECONDS = 60
_TICK_MS = 20
_PACKETS_PER_MBIT = 1e6 / (PACKET_BYTES * 8)


def generate(spec: str) -> NDArray[np.int64] | None:
    """Generate the trace of a generator's name; None when the name is no generator's.

    Returns:
        Opportunities, ms, not decreasing.

    Raises:
        TraceError: The generator's parameters are wrong.
    """
    kind, *parameters = spec.split(":")
    try:
        if kind == "cellular" and len(parameters) == 1:
            return cellular(int(parameters[0]))
        if kind == "poisson" and len(parameters) == 2:
            mbps, seed = float(parameters[0]), int(parameters[1])
            if not 0.01 <= mbps <= 10_000:
                raise TraceError(f"{spec}: {mbps} Mbit/s is outside 0.01 to 10000")
            return poisson(mbps, seed)
    except ValueError:
        raise TraceError(f"{spec}: expected cellular:SEED or poisson:MBPS:SEED") from None
    return None


def poisson(mbps: float, seed: int, seconds: int = 60) -> NDArray[np.int64]:
    """Generate a Poisson link of a mean rate; opportunities in ms."""
    rng = np.random.default_rng([seed, 1])
    counts = rng.poisson(mbps * _PACKETS_PER_MBIT / 1000, seconds * 1000)
    return _close(np.repeat(np.arange(1, seconds * 1000 + 1), counts), seconds * 1000)


def cellular(seed: int, seconds: int = CELLULAR_SECONDS) -> NDArray[np.int64]:
    """Generate a cellular-like link of 0.5 to 30 Mbit/s on average; opportunities in ms."""
    rng = np.random.default_rng([seed, 2])
    ticks = seconds * 1000 // _TICK_MS
    mean = rng.uniform(np.log(0.8), np.log(25.0))
    spread = rng.uniform(0.25, 0.8)
    pull = 1 - np.exp(-_TICK_MS / 1000 / rng.uniform(0.5, 8.0))
    noise = rng.normal(0.0, spread * np.sqrt(pull * (2 - pull)), ticks)
    outages = rng.uniform(0.0, 0.06)
    starts = rng.random(ticks) < outages * _TICK_MS / 1000
    lengths = rng.exponential(rng.uniform(0.1, 1.0), ticks)
    log_rate = mean + spread * rng.normal()
    until = 0.0
    rates = np.empty(ticks)
    for k in range(ticks):
        log_rate += pull * (mean - log_rate) + noise[k]
        if starts[k]:
            until = k * _TICK_MS / 1000 + lengths[k]
        rates[k] = 0.0 if k * _TICK_MS / 1000 < until else np.exp(log_rate)
    per_ms = np.repeat(rates * _PACKETS_PER_MBIT / 1000, _TICK_MS)
    counts = rng.poisson(per_ms)
    return _close(np.repeat(np.arange(1, len(per_ms) + 1), counts), seconds * 1000)


def _close(times: NDArray[np.int64], period: int) -> NDArray[np.int64]:
    """End a trace with an opportunity at its period, since a file's last line is its period."""
    if len(times) == 0 or times[-1] != period:
        times = np.append(times, period)
    return times.astype(np.int64)
