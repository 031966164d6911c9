"""BBR's model of the path: rounds, bottleneck bandwidth, round-trip propagation time, full pipe.

Sections and names are those of draft-cardwell-iccrg-bbr-congestion-control-00.
"""

from __future__ import annotations

import numpy as np

from distrlcc.control.compiled import njit_inner
from distrlcc.control.state import FIRST_FREE, INITIAL_CWND
from distrlcc.control.windowed import FILTER_SIZE, reset, running_max
from distrlcc.types import FloatArray

ROUND_COUNT = FIRST_FREE + 0
"""Packet-timed round trips so far."""
ROUND_START = FIRST_FREE + 1
"""1 at the ACK that starts a round."""
NEXT_ROUND_DELIVERED = FIRST_FREE + 2
"""A packet sent with this many delivered, or more, starts the next round."""
BTLBW = FIRST_FREE + 3
"""Estimated bottleneck bandwidth, packets/s."""
RTPROP = FIRST_FREE + 4
"""Estimated round-trip propagation time, ns; infinite before the first sample."""
RTPROP_STAMP = FIRST_FREE + 5
"""When RTPROP was last seen, ns."""
RTPROP_EXPIRED = FIRST_FREE + 6
"""1 at an ACK that found RTPROP too old."""
FULL_BW = FIRST_FREE + 7
"""Bandwidth at the last round that grew by a quarter, packets/s."""
FULL_COUNT = FIRST_FREE + 8
"""Rounds since then."""
FILLED_PIPE = FIRST_FREE + 9
"""1 once the pipe was found full."""
LIMITED_FROM = FIRST_FREE + 10
"""Packets delivered when PROBE_RTT last began to hold the flow below the path's rate."""
LIMITED_TO = FIRST_FREE + 11
"""Packets delivered once all that it held back were: a sample sent between says too little."""
SAMPLE_LIMITED = FIRST_FREE + 12
"""1 if the newest rate sample is such a one (the draft's app-limited)."""
BTLBW_FILTER = np.int64(FIRST_FREE + 13)
"""Filter: greatest delivery rate of ten rounds."""
MODEL_END = FIRST_FREE + 13 + FILTER_SIZE
"""First element after the model's."""

BTLBW_FILTER_LENGTH = 10.0
"""Window of the bandwidth filter, rounds (section 4.1.1.3)."""
RTPROP_FILTER_LENGTH = 10e9
"""Window of the RTT filter, ns (section 4.1.2.3)."""
FULL_BW_GROWTH = 1.25
"""Growth per round that shows a pipe that is not full (section 4.3.2.2)."""
FULL_BW_ROUNDS = 3.0
"""Rounds without such growth that show a full one."""


@njit_inner
def initialise_model(s: FloatArray, now: int) -> None:
    """Know nothing of the path."""
    s[ROUND_COUNT] = 0.0
    s[ROUND_START] = 0.0
    s[NEXT_ROUND_DELIVERED] = 0.0
    s[BTLBW] = 0.0
    s[RTPROP] = np.inf
    s[RTPROP_STAMP] = now
    s[RTPROP_EXPIRED] = 0.0
    s[FULL_BW] = 0.0
    s[FULL_COUNT] = 0.0
    s[FILLED_PIPE] = 0.0
    s[LIMITED_FROM] = 0.0
    s[LIMITED_TO] = -1.0
    s[SAMPLE_LIMITED] = 0.0
    reset(s, BTLBW_FILTER, 0.0, np.inf)


@njit_inner
def update_btlbw(s: FloatArray, delivered: int, prior_delivered: int, rate: float) -> None:
    """Count rounds and filter the delivery rate (sections 4.1.1.3 and 4.1.1.5)."""
    if prior_delivered >= s[NEXT_ROUND_DELIVERED]:
        s[NEXT_ROUND_DELIVERED] = delivered
        s[ROUND_COUNT] += 1.0
        s[ROUND_START] = 1.0
    else:
        s[ROUND_START] = 0.0
    limited = s[LIMITED_FROM] <= prior_delivered <= s[LIMITED_TO]
    s[SAMPLE_LIMITED] = 1.0 if limited else 0.0
    if rate >= s[BTLBW] or not limited:
        s[BTLBW] = running_max(s, BTLBW_FILTER, BTLBW_FILTER_LENGTH, s[ROUND_COUNT], rate)


@njit_inner
def check_full_pipe(s: FloatArray) -> None:
    """Notice that the bandwidth stopped growing (section 4.3.2.2)."""
    if s[FILLED_PIPE] == 1.0 or s[ROUND_START] == 0.0 or s[SAMPLE_LIMITED] == 1.0:
        return
    if s[BTLBW] >= s[FULL_BW] * FULL_BW_GROWTH:
        s[FULL_BW] = s[BTLBW]
        s[FULL_COUNT] = 0.0
        return
    s[FULL_COUNT] += 1.0
    if s[FULL_COUNT] >= FULL_BW_ROUNDS:
        s[FILLED_PIPE] = 1.0


@njit_inner
def update_rtprop(s: FloatArray, now: int, rtt: int) -> None:
    """Take a lower RTT, or any once the old one is ten seconds old (section 4.1.2.3)."""
    expired = now > s[RTPROP_STAMP] + RTPROP_FILTER_LENGTH
    s[RTPROP_EXPIRED] = 1.0 if expired else 0.0
    if rtt <= s[RTPROP] or expired:
        s[RTPROP] = rtt
        s[RTPROP_STAMP] = now


@njit_inner
def target_inflight(s: FloatArray, gain: float, quanta: float) -> float:
    """Return ``gain`` times the bandwidth-delay product, plus ``quanta`` (section 4.2.3.2)."""
    if s[RTPROP] == np.inf:
        return INITIAL_CWND
    return float(gain * s[BTLBW] * s[RTPROP] * 1e-9 + quanta)
