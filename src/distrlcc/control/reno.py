"""Reno: AIMD on loss, RFC 5681 with the selective recovery of RFC 6675.

Every ACK names its packet, so recovery needs no window inflation. The window drops to ssthresh at
once, and stays until a packet sent after the reduction is acknowledged. The sender always has data,
so its FlightSize is its window. A mark (ECN) does what a loss does (RFC 3168 section 6.1.2).
"""

import numpy as np

from distrlcc.control.compiled import njit_inner
from distrlcc.control.state import CWND, FIRST_FREE, MIN_CWND
from distrlcc.types import FloatArray

SSTHRESH = FIRST_FREE + 0  # slow start threshold, packets
RECOVER = FIRST_FREE + 1  # next sequence number at the last reduction, whose losses are below it


@njit_inner
def initialise(s: FloatArray) -> None:
    """Start in slow start with an unbounded threshold (RFC 5681 section 3.1)."""
    s[SSTHRESH] = np.inf


@njit_inner
def is_congested(s: FloatArray, seq: int, lost: int, marked: int) -> bool:
    """Tell whether one sent since the last reduction was lost (below ``seq``) or marked."""
    return bool((lost > 0 and seq > s[RECOVER]) or (marked > 0 and seq >= s[RECOVER]))


@njit_inner
def on_ack(s: FloatArray, seq: int, sent: int, lost: int, marked: int) -> None:
    """Grow by 1 (slow start) or 1/cwnd per ACK; halve once per window (RFC 5681 section 3)."""
    if is_congested(s, seq, lost, marked):
        s[SSTHRESH] = max(s[CWND] / 2, MIN_CWND)
        s[CWND] = s[SSTHRESH]
        s[RECOVER] = sent
    elif seq >= s[RECOVER]:
        if s[CWND] < s[SSTHRESH]:
            s[CWND] += 1.0
        else:
            s[CWND] += 1.0 / s[CWND]


@njit_inner
def on_timeout(s: FloatArray, sent: int) -> None:
    """Go back to one packet (RFC 5681 section 3.1, equation 4).

    The window is above 1 exactly if something was acknowledged since the last timeout; if not, the
    RFC holds ssthresh.
    """
    if s[CWND] > 1.0:
        s[SSTHRESH] = max(s[CWND] / 2, MIN_CWND)
    s[CWND] = 1.0
    s[RECOVER] = sent
