"""Copa (Arun and Balakrishnan, NSDI 2018): steer to the rate ``1 / (delta * queueing delay)``.

Where the paper is silent, two things follow Facebook's mvfst. The velocity falls to 1 at the ACK
that turns the direction, not only at the window's end. A timeout restarts slow start. One ACK
moves the window by at most a packet, so growth never exceeds slow start's. One thing departs from
the paper: a queue with less than one packet of the flow's own counts as nearly empty. On paths of
fewer than about 30 packets 10% of the RTT's range is less than a packet. There the competitive
mode would else start for no reason and hold on, with queues of several BDP. A mark
(ECN) counts as a loss, which the default mode ignores.
"""

import numpy as np

from distrlcc.control.compiled import njit_inner
from distrlcc.control.state import CWND, FIRST_FREE, INITIAL_CWND, MIN_CWND, PACING
from distrlcc.control.windowed import FILTER_SIZE, reset, running_max, running_min
from distrlcc.types import FloatArray

SRTT = FIRST_FREE + 0  # smoothed RTT, ns; 0 before the first sample
INVERSE_DELTA = FIRST_FREE + 1  # 1 / delta: about the packets that the flow keeps in the queue
VELOCITY = FIRST_FREE + 2  # packets of change per RTT, in units of 1 / delta
DIRECTION = FIRST_FREE + 3  # 1 if the window grew over the last round, -1 if it shrank
SAME_DIRECTION = FIRST_FREE + 4  # rounds that kept the direction
SLOW_START = FIRST_FREE + 5  # 1 until the rate first exceeds the target
ROUND_END = FIRST_FREE + 6  # the ACK of this sequence number, or a later one, ends the round
ROUND_CWND = FIRST_FREE + 7  # window at the round's start, packets
ROUND_LOST = FIRST_FREE + 8  # packets found lost or marked in the round
EMPTY_TIME = FIRST_FREE + 9  # when the queue was last nearly empty, ns
RTT_MIN = np.int64(FIRST_FREE + 10)  # filter: least RTT of 10 s
RTT_STANDING = RTT_MIN + FILTER_SIZE  # filter: least RTT of srtt / 2
RTT_MAX = RTT_STANDING + FILTER_SIZE  # filter: greatest RTT of four RTTs

DEFAULT_INVERSE_DELTA = 2.0  # default mode's delta is 0.5 (section 2.1)
MIN_WINDOW = 10e9  # window of RTT_MIN, ns


@njit_inner
def initialise(s: FloatArray, now: int) -> None:
    """Start in slow start, default mode."""
    s[INVERSE_DELTA] = DEFAULT_INVERSE_DELTA
    s[ROUND_END] = INITIAL_CWND
    s[SLOW_START] = 1.0
    s[EMPTY_TIME] = now
    _restart_velocity(s, 1.0)
    reset(s, RTT_MIN, float(now), np.inf)
    reset(s, RTT_STANDING, float(now), np.inf)
    reset(s, RTT_MAX, float(now), np.inf)


@njit_inner
def on_ack(
    s: FloatArray, now: int, rtt: int, seq: int, sent: int, lost: int, rate: float, marked: int
) -> None:
    """Move towards the target rate (section 2.1) and choose the mode (section 2.2)."""
    time, sample = float(now), float(rtt)
    s[SRTT] = sample if s[SRTT] == 0.0 else s[SRTT] + (sample - s[SRTT]) / 8
    least = running_min(s, RTT_MIN, MIN_WINDOW, time, sample)
    standing = running_min(s, RTT_STANDING, s[SRTT] / 2, time, sample)
    greatest = running_max(s, RTT_MAX, 4 * s[SRTT], time, sample)
    queueing = standing - least
    s[ROUND_LOST] += lost + marked
    nearly_empty = max(0.1 * (greatest - least), 1e9 / rate)
    if queueing <= nearly_empty or s[SLOW_START] == 1.0:
        s[EMPTY_TIME] = now
    if seq >= s[ROUND_END]:
        _end_round(s, now)
        s[ROUND_END] = sent
    below_target = s[CWND] * queueing <= s[INVERSE_DELTA] * standing
    if s[SLOW_START] == 1.0 and below_target:
        s[CWND] += 1.0
    else:
        s[SLOW_START] = 0.0
        _step(s, 1.0 if below_target else -1.0)
    s[PACING] = 2e9 * s[CWND] / standing


@njit_inner
def on_timeout(s: FloatArray, sent: int) -> None:
    """Restart slow start from the least window."""
    s[CWND] = MIN_CWND
    s[SLOW_START] = 1.0
    s[INVERSE_DELTA] = DEFAULT_INVERSE_DELTA
    s[ROUND_END] = sent
    _restart_velocity(s, 1.0)


@njit_inner
def _restart_velocity(s: FloatArray, direction: float) -> None:
    s[VELOCITY] = 1.0
    s[DIRECTION] = direction
    s[SAME_DIRECTION] = 0.0
    s[ROUND_CWND] = s[CWND]


@njit_inner
def _step(s: FloatArray, direction: float) -> None:
    """Change the window by velocity / (delta * cwnd) (section 2.1, step 3)."""
    if s[VELOCITY] > 1.0 and direction != s[DIRECTION]:
        _restart_velocity(s, direction)
    change = min(s[VELOCITY] * s[INVERSE_DELTA] / s[CWND], 1.0)
    s[CWND] = max(s[CWND] + direction * change, MIN_CWND)


@njit_inner
def _end_round(s: FloatArray, now: int) -> None:
    """Update velocity (section 2.1, step 4) and delta (section 2.2) once per window."""
    direction = 1.0 if s[CWND] > s[ROUND_CWND] else -1.0
    if s[SLOW_START] == 1.0 or direction != s[DIRECTION]:
        _restart_velocity(s, direction)
    else:
        s[SAME_DIRECTION] += 1.0
        if s[SAME_DIRECTION] >= 3.0:
            s[VELOCITY] *= 2.0
    s[ROUND_CWND] = s[CWND]
    if now - s[EMPTY_TIME] <= 5 * s[SRTT]:
        s[INVERSE_DELTA] = DEFAULT_INVERSE_DELTA
    elif s[ROUND_LOST] > 0.0:
        s[INVERSE_DELTA] = max(s[INVERSE_DELTA] / 2, DEFAULT_INVERSE_DELTA)
    else:
        s[INVERSE_DELTA] += 1.0
    s[ROUND_LOST] = 0.0
