"""CUBIC, RFC 9438, with standard slow start (section 4.10 allows it; no HyStart++).

A mark (ECN) reduces the window as a loss does (section 4.6).
"""

import numpy as np

from distrlcc.control.compiled import njit_inner
from distrlcc.control.reno import RECOVER, SSTHRESH, is_congested
from distrlcc.control.state import CWND, FIRST_FREE, MIN_CWND
from distrlcc.types import FloatArray

W_MAX = FIRST_FREE + 2  # window before the last reduction, after fast convergence, packets
K = FIRST_FREE + 3  # time from the epoch's start to W_MAX, s
EPOCH = FIRST_FREE + 4  # when congestion avoidance last started, ns; negative before it did
W_EST = FIRST_FREE + 5  # window that a Reno flow would have, packets
CWND_PRIOR = FIRST_FREE + 6  # window before the last reduction, packets
SRTT = FIRST_FREE + 7  # smoothed RTT (RFC 6298), ns; 0 before the first sample
AFTER_TIMEOUT = FIRST_FREE + 8  # 1 from a timeout until the next reduction

C = 0.4  # aggressiveness, packets/s^3 (section 5.1)
BETA = 0.7  # multiplicative decrease (section 4.6)
ALPHA = 3 * (1 - BETA) / (1 + BETA)  # growth of W_EST per window, for Reno's average (section 4.3)


@njit_inner
def initialise(s: FloatArray) -> None:
    """Start in slow start with an unbounded threshold."""
    s[SSTHRESH] = np.inf
    s[EPOCH] = -1.0


@njit_inner
def on_ack(s: FloatArray, now: int, rtt: int, seq: int, sent: int, lost: int, marked: int) -> None:
    """Grow along the cubic or with Reno's estimate; reduce once per window."""
    s[SRTT] = rtt if s[SRTT] == 0.0 else s[SRTT] + (rtt - s[SRTT]) / 8
    if is_congested(s, seq, lost, marked):
        _reduce(s)
        s[CWND] = s[SSTHRESH]
        s[RECOVER] = sent
        s[AFTER_TIMEOUT] = 0.0
    elif seq >= s[RECOVER]:
        if s[CWND] < s[SSTHRESH]:
            s[CWND] += 1.0
        else:
            _avoid_congestion(s, now)


@njit_inner
def on_timeout(s: FloatArray, sent: int) -> None:
    """Go back to one packet; ssthresh falls by beta (section 4.8), once as in RFC 5681."""
    if s[CWND] > 1.0:
        _reduce(s)
    s[CWND] = 1.0
    s[RECOVER] = sent
    s[EPOCH] = -1.0
    s[AFTER_TIMEOUT] = 1.0


@njit_inner
def _reduce(s: FloatArray) -> None:
    """Multiplicative decrease and fast convergence (sections 4.6 and 4.7)."""
    cwnd = s[CWND]
    s[CWND_PRIOR] = cwnd
    s[W_MAX] = cwnd * (1 + BETA) / 2 if cwnd < s[W_MAX] else cwnd
    s[SSTHRESH] = max(cwnd * BETA, MIN_CWND)
    s[EPOCH] = -1.0


@njit_inner
def _start_epoch(s: FloatArray, now: int) -> None:
    """Enter congestion avoidance: K by equation 2, or 0 after a timeout (section 4.8)."""
    cwnd = s[CWND]
    if s[AFTER_TIMEOUT] == 1.0 or s[W_MAX] < cwnd:
        s[W_MAX] = cwnd
    s[K] = ((s[W_MAX] - cwnd) / C) ** (1 / 3)
    s[W_EST] = cwnd
    s[EPOCH] = now


@njit_inner
def _avoid_congestion(s: FloatArray, now: int) -> None:
    """One ACK of congestion avoidance (sections 4.2 to 4.5)."""
    if s[EPOCH] < 0.0:
        _start_epoch(s, now)
    cwnd = s[CWND]
    t = (now - s[EPOCH]) * 1e-9 - s[K]
    ahead = t + s[SRTT] * 1e-9
    s[W_EST] += (ALPHA if s[W_EST] < s[CWND_PRIOR] else 1.0) / cwnd
    if C * t * t * t + s[W_MAX] < s[W_EST]:
        s[CWND] = s[W_EST]
    else:
        target = min(max(C * ahead * ahead * ahead + s[W_MAX], cwnd), 1.5 * cwnd)
        s[CWND] += (target - cwnd) / cwnd
