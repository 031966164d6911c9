"""BBR's states: STARTUP, DRAIN, PROBE_BW with its gain cycle, and PROBE_RTT.

Sections and names are those of draft-cardwell-iccrg-bbr-congestion-control-00.
"""

from __future__ import annotations

import math

from distrlcc.control.bbr_model import (
    FILLED_PIPE,
    LIMITED_FROM,
    LIMITED_TO,
    MODEL_END,
    NEXT_ROUND_DELIVERED,
    ROUND_START,
    RTPROP,
    RTPROP_EXPIRED,
    RTPROP_STAMP,
    target_inflight,
)
from distrlcc.control.compiled import njit_inner
from distrlcc.control.state import CWND
from distrlcc.types import FloatArray

MODE = MODEL_END + 0
"""STARTUP, DRAIN, PROBE_BW or PROBE_RTT."""
PACING_GAIN = MODEL_END + 1
"""Pacing rate over BTLBW."""
CWND_GAIN = MODEL_END + 2
"""Window over the bandwidth-delay product."""
CYCLE_INDEX = MODEL_END + 3
"""Phase of PROBE_BW."""
CYCLE_STAMP = MODEL_END + 4
"""When the phase began, ns."""
PROBE_RTT_DONE = MODEL_END + 5
"""When PROBE_RTT may end, ns; 0 before the window is down."""
PROBE_RTT_ROUND = MODEL_END + 6
"""1 once a round passed in PROBE_RTT."""
PRIOR_CWND = MODEL_END + 7
"""Window to restore after recovery or PROBE_RTT, packets."""
IN_RECOVERY = MODEL_END + 8
"""1 in fast recovery, 2 after a timeout, else 0."""
RECOVER = MODEL_END + 9
"""Next sequence number when recovery began."""
RANDOM = MODEL_END + 10
"""State of the generator of PROBE_BW's first phase."""

STARTUP = 0.0
DRAIN = 1.0
PROBE_BW = 2.0
PROBE_RTT = 3.0

HIGH_GAIN = 2 / math.log(2)
"""Least gain that doubles the rate each round (section 4.3.2.1)."""
CYCLE_LENGTH = 8
"""Phases of PROBE_BW: gains 1.25, 0.75 and six times 1 (section 4.3.4)."""
PROBE_BW_CWND_GAIN = 2.0
"""Window gain of PROBE_BW (section 4.3.4.3)."""
MIN_PIPE_CWND = 4.0
"""Least window, and that of PROBE_RTT, packets (section 4.2.3.3)."""
PROBE_RTT_DURATION = 200e6
"""Least time at the least window, ns (section 4.3.5)."""
QUANTA = 3.0
"""Three send quanta on top of the bandwidth-delay product (section 4.2.3.2)."""


@njit_inner
def enter(s: FloatArray, mode: float, pacing_gain: float, cwnd_gain: float) -> None:
    """Enter a state with its gains."""
    s[MODE] = mode
    s[PACING_GAIN] = pacing_gain
    s[CWND_GAIN] = cwnd_gain


@njit_inner
def _random_phase(s: FloatArray) -> int:
    """Return a number from 0 to 6 (Park and Miller's minimal standard generator)."""
    s[RANDOM] = (int(s[RANDOM]) * 48_271) % 2_147_483_647
    return int(s[RANDOM]) % (CYCLE_LENGTH - 1)


@njit_inner
def _enter_probe_bw(s: FloatArray, now: int) -> None:
    """Start in any phase but the one that drains (section 4.3.4.3)."""
    enter(s, PROBE_BW, 1.0, PROBE_BW_CWND_GAIN)
    s[CYCLE_INDEX] = CYCLE_LENGTH - 1 - _random_phase(s)
    advance_cycle_phase(s, now)


@njit_inner
def advance_cycle_phase(s: FloatArray, now: int) -> None:
    """Take the cycle's next gain (section 4.3.4.3)."""
    s[CYCLE_STAMP] = now
    s[CYCLE_INDEX] = (s[CYCLE_INDEX] + 1) % CYCLE_LENGTH
    if s[CYCLE_INDEX] == 0.0:
        s[PACING_GAIN] = 1.25
    elif s[CYCLE_INDEX] == 1.0:
        s[PACING_GAIN] = 0.75
    else:
        s[PACING_GAIN] = 1.0


@njit_inner
def is_next_cycle_phase(s: FloatArray, now: int, lost: int, prior_inflight: int) -> bool:
    """Tell whether the phase is over (section 4.3.4.3)."""
    is_full_length = now - s[CYCLE_STAMP] > s[RTPROP]
    gain = s[PACING_GAIN]
    if gain > 1.0:
        full = lost > 0 or prior_inflight >= target_inflight(s, gain, QUANTA)
        return bool(is_full_length and full)
    if gain < 1.0:
        return bool(is_full_length or prior_inflight <= target_inflight(s, 1.0, QUANTA))
    return bool(is_full_length)


@njit_inner
def check_drain(s: FloatArray, now: int, inflight: int) -> None:
    """Leave STARTUP for DRAIN, and DRAIN for PROBE_BW (sections 4.3.2.2 and 4.3.3)."""
    if s[MODE] == STARTUP and s[FILLED_PIPE] == 1.0:
        enter(s, DRAIN, 1 / HIGH_GAIN, HIGH_GAIN)
    if s[MODE] == DRAIN and inflight <= target_inflight(s, 1.0, QUANTA):
        _enter_probe_bw(s, now)


@njit_inner
def check_probe_rtt(s: FloatArray, now: int, inflight: int, delivered: int) -> None:
    """Enter, hold and leave PROBE_RTT (section 4.3.5)."""
    if s[MODE] != PROBE_RTT:
        if s[RTPROP_EXPIRED] == 0.0:
            return
        save_cwnd(s)
        enter(s, PROBE_RTT, 1.0, 1.0)
        s[PROBE_RTT_DONE] = 0.0
        s[LIMITED_FROM] = delivered
    s[LIMITED_TO] = delivered + inflight
    if s[PROBE_RTT_DONE] == 0.0:
        if inflight <= MIN_PIPE_CWND:
            s[PROBE_RTT_DONE] = now + PROBE_RTT_DURATION
            s[PROBE_RTT_ROUND] = 0.0
            s[NEXT_ROUND_DELIVERED] = delivered
        return
    if s[ROUND_START] == 1.0:
        s[PROBE_RTT_ROUND] = 1.0
    if s[PROBE_RTT_ROUND] == 1.0 and now > s[PROBE_RTT_DONE]:
        s[RTPROP_STAMP] = now
        s[CWND] = max(s[CWND], s[PRIOR_CWND])
        if s[FILLED_PIPE] == 1.0:
            _enter_probe_bw(s, now)
        else:
            enter(s, STARTUP, HIGH_GAIN, HIGH_GAIN)


@njit_inner
def save_cwnd(s: FloatArray) -> None:
    """Remember the last good window (section 4.2.3.4)."""
    if s[IN_RECOVERY] == 0.0 and s[MODE] != PROBE_RTT:
        s[PRIOR_CWND] = s[CWND]
    else:
        s[PRIOR_CWND] = max(s[PRIOR_CWND], s[CWND])
