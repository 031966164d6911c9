"""Vegas (Brakmo and Peterson, IEEE JSAC 1995): keep a few packets in the queue.

Once per RTT the packets in the queue are estimated as ``(expected - actual rate) * base RTT``,
which is ``cwnd * (1 - base RTT / RTT)``. The RTT is the least of the round, as in Linux, against
bursts. Losses and marks (ECN) halve the window as in RFC 5681, as in Linux.
"""

import numpy as np

from distrlcc.control import reno
from distrlcc.control.compiled import njit_inner
from distrlcc.control.reno import RECOVER, SSTHRESH
from distrlcc.control.state import CWND, FIRST_FREE, INITIAL_CWND, MIN_CWND
from distrlcc.types import FloatArray

BASE_RTT = FIRST_FREE + 2  # least RTT of the flow, ns
ROUND_RTT = FIRST_FREE + 3  # least RTT of the current round, ns
ROUND_END = FIRST_FREE + 4  # the ACK of this sequence number, or a later one, ends the round
GROWING = FIRST_FREE + 5  # 1 in the rounds of slow start that double the window, 0 in those between

ALPHA = 2.0  # fewer packets than this in the queue: grow
BETA = 4.0  # more packets than this in the queue: shrink
GAMMA = 1.0  # more packets than this in the queue end slow start


@njit_inner
def initialise(s: FloatArray) -> None:
    """Start in slow start, doubling in the first round."""
    s[SSTHRESH] = np.inf
    s[BASE_RTT] = np.inf
    s[ROUND_RTT] = np.inf
    s[ROUND_END] = INITIAL_CWND
    s[GROWING] = 1.0


@njit_inner
def on_ack(s: FloatArray, rtt: int, seq: int, sent: int, lost: int, marked: int) -> None:
    """Measure, grow in slow start, and decide at the end of each round."""
    s[BASE_RTT] = min(s[BASE_RTT], rtt)
    s[ROUND_RTT] = min(s[ROUND_RTT], rtt)
    if seq >= s[ROUND_END]:
        if seq >= s[RECOVER]:
            _decide(s)
        s[ROUND_RTT] = np.inf
        s[ROUND_END] = sent
    if reno.is_congested(s, seq, lost, marked):
        s[SSTHRESH] = max(s[CWND] / 2, MIN_CWND)
        s[CWND] = s[SSTHRESH]
        s[RECOVER] = sent
    elif seq >= s[RECOVER] and s[CWND] < s[SSTHRESH]:
        s[CWND] += s[GROWING]


@njit_inner
def on_timeout(s: FloatArray, sent: int) -> None:
    """Go back to one packet and slow start (RFC 5681 section 3.1)."""
    reno.on_timeout(s, sent)
    s[ROUND_END] = sent
    s[ROUND_RTT] = np.inf
    s[GROWING] = 1.0


@njit_inner
def _decide(s: FloatArray) -> None:
    """Compare expected with actual rate (section III-B; slow start III-C)."""
    cwnd = s[CWND]
    without_queue = cwnd * s[BASE_RTT] / s[ROUND_RTT]
    queued = cwnd - without_queue
    if cwnd < s[SSTHRESH]:
        if queued > GAMMA:
            s[CWND] = max(without_queue + GAMMA, MIN_CWND)
            s[SSTHRESH] = MIN_CWND
        else:
            s[GROWING] = 1.0 - s[GROWING]
    elif queued < ALPHA:
        s[CWND] = cwnd + 1.0
    elif queued > BETA:
        s[CWND] = max(cwnd - 1.0, MIN_CWND)
        s[SSTHRESH] = min(s[SSTHRESH], s[CWND])
