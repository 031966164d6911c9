"""LEDBAT, RFC 6817: use what others leave, at most 100 ms of queueing delay.

The RFC measures one-way delay. Here the RTT stands for it, base and current alike, so a queue on
the way back counts too (the simulator has no such queue). Slow start follows libutp: it ends at a
loss or once the queueing delay passes 0.9 of the target. Then, unlike there, the window halves,
back to the one whose packets met that delay: a linear decrease takes a minute to undo a doubling.
The first window is the common 10 packets instead of the RFC's 2, and a timeout (section 2.4.2) is
Reno's. A mark (ECN) does what a loss does (RFC 3168 section 6.1.2).
"""

import numpy as np

from distrlcc.control.compiled import njit_inner
from distrlcc.control.reno import RECOVER, SSTHRESH, is_congested
from distrlcc.control.state import CWND, FIRST_FREE, MIN_CWND
from distrlcc.types import FloatArray

MINUTE = FIRST_FREE + 2  # when the current minute of the base history started, ns
BASE_INDEX = FIRST_FREE + 3  # index of the current minute in the history
CURRENT_INDEX = FIRST_FREE + 4  # index of the next sample in the current-delay filter
BASE = FIRST_FREE + 5  # least delay of the whole history, ns
CURRENT_DELAYS = FIRST_FREE + 6  # the last CURRENT_FILTER samples, ns
CURRENT_FILTER = 4  # samples in the current-delay filter, whose minimum counts (section 2.4.2)
BASE_DELAYS = CURRENT_DELAYS + CURRENT_FILTER  # least delay of each minute of the history, ns
BASE_HISTORY = 10  # minutes in the history (section 2.5)

TARGET = 100e6  # queueing delay to hold, ns (section 2.5: at most 100 ms)
GAIN = 1.0  # packets per RTT at no queueing delay (section 2.5: at most 1)
ALLOWED_INCREASE = 1.0  # packets by which the window may exceed what is in flight (section 2.4.2)
SLOW_START_END = 0.1  # slow start ends closer to the target than this part of it
ONE_MINUTE = 60e9  # nanoseconds in a minute


@njit_inner
def initialise(s: FloatArray, now: int) -> None:
    """Start in slow start with empty histories."""
    s[SSTHRESH] = np.inf
    s[MINUTE] = now
    s[BASE] = np.inf
    for i in range(CURRENT_FILTER + BASE_HISTORY):
        s[CURRENT_DELAYS + i] = np.inf


@njit_inner
def on_ack(
    s: FloatArray, now: int, rtt: int, seq: int, sent: int, lost: int, inflight: int, marked: int
) -> None:
    """Grow or shrink by the distance from the target (section 2.4.2)."""
    _update_base(s, now, rtt)
    off_target = (TARGET - (_current_delay(s, rtt) - s[BASE])) / TARGET
    if is_congested(s, seq, lost, marked):
        s[CWND] = min(s[CWND], max(s[CWND] / 2, MIN_CWND))
        s[SSTHRESH] = s[CWND]
        s[RECOVER] = sent
        return
    slow_start = s[CWND] < s[SSTHRESH]
    if slow_start and off_target < SLOW_START_END:
        s[CWND] /= 2
        slow_start = False
    change = 1.0 if slow_start else GAIN * off_target / s[CWND]
    flight = inflight + lost + 1
    s[CWND] = max(min(s[CWND] + change, flight + ALLOWED_INCREASE), MIN_CWND)
    if not slow_start:
        s[SSTHRESH] = s[CWND]  # it follows the window from then on


@njit_inner
def _update_base(s: FloatArray, now: int, rtt: int) -> None:
    """Keep the least delay of each minute and of all (section 2.4.2, update_base_delay)."""
    if now - s[MINUTE] >= ONE_MINUTE:
        s[MINUTE] = now
        s[BASE_INDEX] = (s[BASE_INDEX] + 1) % BASE_HISTORY
        s[BASE_DELAYS + int(s[BASE_INDEX])] = np.inf
        least = np.inf
        for i in range(BASE_HISTORY):
            least = min(least, s[BASE_DELAYS + i])
        s[BASE] = least
    minute = BASE_DELAYS + int(s[BASE_INDEX])
    s[minute] = min(s[minute], rtt)
    s[BASE] = min(s[BASE], rtt)


@njit_inner
def _current_delay(s: FloatArray, rtt: int) -> float:
    """Return the least of the last samples (section 2.4.2, update_current_delay)."""
    s[CURRENT_DELAYS + int(s[CURRENT_INDEX])] = rtt
    s[CURRENT_INDEX] = (s[CURRENT_INDEX] + 1) % CURRENT_FILTER
    least = s[CURRENT_DELAYS]
    for i in range(1, CURRENT_FILTER):
        least = min(least, s[CURRENT_DELAYS + i])
    return float(least)
