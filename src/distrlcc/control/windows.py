"""What stands between a policy's windows and its flow: a guard that bounds them, and pacing.

The guard is outside the network, so that no policy, however trained, can do much harm:

- A window grows by `GROWTH` times the packets that the step acknowledged at most: not at all in
  silence.
- A window is at most `MOST_BDP` times what the path delivered lately in its least RTT, which is
  `LEAST_PATH` or more, and `SPARE`.
- A flow that loses more than a bound in each of `BAD_ROUNDS` rounds has no greater window than
  CUBIC's rule gives (RFC 9438, without slow start) until it has lost no more than that for long
  enough: the longer, the more often it was so. A round is a round trip, or up to `ROUND_RTTS` of
  them until it has `ROUND_PACKETS`; those of fewer than `FEW_PACKETS` say nothing. Where packets
  queue, half the bound is enough. Where they do not, they are mostly lost at random or in a queue
  of a few packets, where a smaller window gains nothing: it takes three times the bound, and
  `SIGMAS` standard deviations. (Behind a policer, which has no queue, a smaller one loses less.)

The kernel's program has the same rule in whole numbers (``net/kernel/guard.bpf.h``), for each
acknowledgement. A flow's state is a float64 row; windows are in packets, times in s.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from distrlcc.control.compiled import njit
from distrlcc.control.cubic import ALPHA, BETA, C
from distrlcc.control.state import LEAST_PATH, MIN_CWND
from distrlcc.types import FloatArray, IntervalStats

GROWTH, MOST_BDP, SPARE = 4.0, 8.0, 10.0
BAD_ROUNDS, CALM_ROUNDS = 2, 8
ROUND_PACKETS, ROUND_RTTS, FEW_PACKETS = 64, 8, 8
QUEUED, UNQUEUED, SIGMAS = 0.5, 3.0, 1.5
LEAST_S, MOST_LONGER = 10.0, 4.0
"""The least RTT follows a longer path in this time, s, to so many times the least ever."""
_FADE = 1 / 16
"""Part of the greatest delivery rate that is forgotten in each round trip."""

ACKED = 0  # packets that the newest step acknowledged
SRTT = 1  # smoothed RTT (RFC 6298); 0 before the first sample
LEAST = 2  # least RTT, which follows a longer path; 0 before the first sample
RATE, TOP = 3, 4  # delivery rate over a round trip, packets/s, and its greatest, which fades
ROUND_ACKED, ROUND_LOST, ROUND_TIME = 5, 6, 7  # of the round that is counted
BAD, CALM, ENTRIES = 8, 9, 10  # rounds in a row above the bound, and not; times under CUBIC's rule
ON = 11  # 1 while CUBIC's rule bounds the window
WINDOW, W_MAX, W_EST, K, EPOCH = 12, 13, 14, 15, 16  # CUBIC's, as RFC 9438 has them; EPOCH: its age
EVER, ROUND_LEAST = 17, 18  # least RTT ever, and of the round; 0 before the first sample
STATE_SIZE = 19


@njit
def _reduce(s: FloatArray) -> None:
    """Fall after a loss (sections 4.6 and 4.7)."""
    before = s[WINDOW]
    s[W_MAX] = before * (1.0 + BETA) / 2.0 if before < s[W_MAX] else before
    s[WINDOW] = max(before * BETA, MIN_CWND)
    s[W_EST] = s[WINDOW]
    s[K] = (max(s[W_MAX] - s[WINDOW], 0.0) / C) ** (1.0 / 3.0)
    s[EPOCH] = 0.0


@njit
def _grow(s: FloatArray) -> None:
    """Grow along the cubic, or as Reno if that is more (sections 4.2 to 4.5)."""
    window = s[WINDOW]
    acked = min(s[ACKED], window)
    t = s[EPOCH] - s[K]
    target = min(max(C * t * t * t + s[W_MAX], window), 1.5 * window)
    s[W_EST] += ALPHA * acked / window
    s[WINDOW] = max(window + (target - window) * acked / window, s[W_EST])


@njit
def observe(rows: FloatArray, seen: FloatArray, bound: float) -> None:
    """Count a step of every flow in its row, ``[N, STATE_SIZE]``.

    ``seen`` holds the step's duration (s), packets acknowledged and lost, sum and least of the RTTs
    (s), packets in flight and the window, ``[7, N]``.
    """
    for n in range(len(rows)):
        s = rows[n]
        duration, acked, lost, rtt_sum, rtt_min, inflight, cwnd = seen[:, n]
        s[ACKED] = acked
        # The RTT: smoothed, the path's least, the least ever, and the round's.
        if acked > 0.0:
            weight = 1.0 - 0.875**acked if s[SRTT] > 0.0 else 1.0
            s[SRTT] += weight * (rtt_sum / acked - s[SRTT])
            s[EVER] = min(s[EVER], rtt_min) if s[EVER] > 0.0 else rtt_min
            drifted = s[LEAST] + duration / LEAST_S * (rtt_min - s[LEAST])
            drifted = min(drifted, rtt_min, MOST_LONGER * s[EVER])
            s[LEAST] = drifted if s[LEAST] > 0.0 else rtt_min
            s[ROUND_LEAST] = min(s[ROUND_LEAST], rtt_min) if s[ROUND_LEAST] > 0.0 else rtt_min
        if bound == 0.0 or s[LEAST] == 0.0:
            continue
        # What the path delivers.
        weight = min(duration / s[LEAST], 1.0)
        s[RATE] += (1.0 if s[RATE] == 0.0 else weight) * (acked / duration - s[RATE])
        s[TOP] = max(s[RATE], s[TOP] * (1.0 - _FADE * weight))
        # CUBIC's rule: one reduction per round trip.
        s[EPOCH] += duration
        if s[ON] == 1.0:
            if lost > 0.0 and s[EPOCH] >= s[SRTT]:
                _reduce(s)
            elif lost == 0.0 and acked > 0.0 and inflight + 2.0 * acked >= s[WINDOW]:
                _grow(s)
        # The round's loss.
        s[ROUND_ACKED] += acked
        s[ROUND_LOST] += lost
        s[ROUND_TIME] += duration
        packets = s[ROUND_ACKED] + s[ROUND_LOST]
        length = s[ROUND_TIME] / s[SRTT]
        if length < 1.0 or (packets < ROUND_PACKETS and length < ROUND_RTTS):
            continue
        lost = s[ROUND_LOST]
        queued = s[ROUND_LEAST] > 1.5 * s[LEAST]
        s[ROUND_ACKED] = s[ROUND_LOST] = s[ROUND_TIME] = s[ROUND_LEAST] = 0.0
        if packets < FEW_PACKETS:
            continue
        expected = (bound if queued else UNQUEUED * bound) * packets
        most = QUEUED * expected if queued else expected + SIGMAS * math.sqrt(expected)
        s[BAD] = s[BAD] + 1.0 if lost > most else 0.0
        s[CALM] = s[CALM] + 1.0 if lost <= expected else 0.0
        # In, or out.
        if s[ON] == 0.0 and s[BAD] >= BAD_ROUNDS:
            s[ON] = 1.0
            s[ENTRIES] += 1.0
            s[CALM] = s[W_MAX] = 0.0
            s[WINDOW] = cwnd
            _reduce(s)
        elif s[ON] == 1.0 and s[CALM] >= CALM_ROUNDS / 2 * 2.0 ** min(s[ENTRIES], 6.0):
            s[ON] = s[BAD] = 0.0


class WindowControl:
    """The guard and the pacing of N flows."""

    def __init__(self, n: int, pacing: float, guard: float) -> None:
        """Take the gain of pacing and the guard's bound; 0 is without."""
        self.pacing, self.guard = pacing, guard
        self.state = np.zeros((n, STATE_SIZE))
        self.on = self.state[:, ON]
        """1 where CUBIC's rule bounds the window, ``[N]``."""
        self.lowered = np.zeros(n, np.bool_)
        """Whether the guard lowered the newest window, by any of its rules, ``[N]``."""
        if pacing or guard:  # compiled code is loaded now, not in a flow's first step
            observe(np.zeros((0, STATE_SIZE)), np.zeros((7, 0)), guard)

    def reset(self, which: NDArray[np.int64]) -> None:
        """Begin some flows anew."""
        self.state[which] = 0.0
        self.lowered[which] = False

    def observe(self, stats: IntervalStats) -> None:
        """Count a step of the flows, ``[N]``."""
        if not (self.pacing or self.guard):
            return
        columns = (
            *(stats.duration, stats.acked, stats.lost, stats.rtt_sum, stats.rtt_min),
            *(stats.inflight, stats.cwnd),
        )
        observe(self.state, np.array(columns), self.guard)

    def apply(
        self, held: tuple[FloatArray, FloatArray], chosen: tuple[FloatArray, FloatArray]
    ) -> tuple[FloatArray, FloatArray]:
        """Return the windows and pacing rates to hold, of those held and those chosen, ``[N]``."""
        cwnd, rate = chosen
        s = self.state.T
        if self.guard:
            most = np.maximum(held[0], MIN_CWND) + GROWTH * s[ACKED]
            cap = MOST_BDP * s[TOP] * np.maximum(s[LEAST], LEAST_PATH) + SPARE
            cwnd = np.minimum(cwnd, np.where(s[TOP] > 0.0, np.minimum(most, cap), most))
            cwnd = np.where(s[ON] == 1.0, np.minimum(cwnd, s[WINDOW]), cwnd)
            cwnd = np.maximum(cwnd, MIN_CWND)
            self.lowered = cwnd < chosen[0]
        if self.pacing:
            rate = np.where(s[SRTT] > 0.0, self.pacing * cwnd / np.maximum(s[SRTT], 1e-6), 0.0)
        return cwnd, rate
