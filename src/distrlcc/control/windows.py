"""The layer between a policy's windows and its flow: a guard that bounds them, and pacing.

The guard is outside the network, so that no policy can do much harm.

* A window grows by at most `GROWTH` times the packets that the step acknowledged: not at all in
  silence.
* A window is at most `MOST_BDP` times what the path delivered lately in its least RTT, which is
  `LEAST_PATH` or more, and `SPARE`.
* A flow that loses more than a bound in each of `BAD_ROUNDS` rounds gets no greater window than
  CUBIC's rule (RFC 9438, without slow start). This ends once it has lost less for long enough: the
  longer, the more often it was so.
* A round is a round trip, or up to `ROUND_RTTS` of them until it has `ROUND_PACKETS`. A round of
  fewer than `FEW_PACKETS` counts neither way.
* Where packets queue, half the bound is enough. Elsewhere most losses are random, or come from a
  queue of a few packets, and a smaller window gains nothing. It takes three times the bound and
  `SIGMAS` standard deviations. Behind a policer, which has no queue, a smaller window loses less.
* Outside of what policies hold, CUBIC's rule has the window alone, with slow start and up to
  `MOST_CWND`. That is a path whose least RTT is under `LEAST_PATH`, or a noisy one.
* A path is noisy when three things hold for `NOISY_ROUNDS` rounds in a row. The noise exceeds what
  the policy holds (`NOISE` if its observation says no more), a packet's time and `NOISE_OF_PATH` of
  the least RTT. No round in the last one to two `WINDOW_S` had a mean within `SPREAD` of its own
  least RTT, as rounds have whose queue is empty or stands. The newest round's mean is within
  `UNEVEN` times the noise of its least RTT; it is not where the rate varies.
* Noise is the least mean RTT of a round less the least RTT, both of the last one to two `WINDOW_S`.
  A path is noisy no more after `QUIET_S` with half of that: the longer, the more often it was so.

Pacing sends so many windows a round trip, but with a guard at most `GENTLE` into a queue without
room. There a flow lost packets in its last `LOSS_RTTS` round trips, and fewer than `ROOM` wait.

The kernel's program has the same rule in whole numbers (``net/kernel/guard.bpf.h``), for each
acknowledgement. A flow's state is a float64 row; windows are in packets, times in s.
"""

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
WINDOW_S, NOISY_ROUNDS, NOISY_PACKETS = 4.0, 12, 8
NOISE, NOISE_OF_PATH, SPREAD, UNEVEN = 0.004, 1 / 32, 0.00175, 1.5
QUIET_S, MOST_CWND = 10.0, 32768.0
GENTLE, ROOM, LOSS_RTTS = 1.05, 2.0, 10.0
LEAST_S, MOST_LONGER = 10.0, 4.0
"""The least RTT follows a longer path in this time, s, to so many times the least ever."""
_FADE = 1 / 16  # part of the greatest delivery rate that is forgotten in each round trip

ACKED = 0  # packets that the newest step acknowledged
SRTT = 1  # smoothed RTT (RFC 6298); 0 before the first sample
LEAST = 2  # least RTT, which follows a longer path; 0 before the first sample
RATE, TOP = 3, 4  # delivery rate over a round trip, packets/s, and its greatest, which fades
ROUND_ACKED, ROUND_LOST, ROUND_TIME = 5, 6, 7  # of the round that is counted
BAD, CALM, ENTRIES = 8, 9, 10  # rounds in a row above the bound, and not; times under CUBIC's rule
ON = 11  # 1 while CUBIC's rule bounds the window, `OUTSIDE` while it has the window alone
WINDOW, W_MAX, W_EST, K, EPOCH = 12, 13, 14, 15, 16  # CUBIC's, as RFC 9438 has them; EPOCH: its age
EVER, ROUND_LEAST = 17, 18  # least RTT ever, and of the round; 0 before the first sample
# Of the round in which noise is looked for: packets acknowledged, sum and least of RTTs, time.
NOISE_ACKED, NOISE_SUM, NOISE_LEAST, NOISE_TIME = 19, 20, 21, 22
# The newest window's age; its least RTT, calmest round's mean and spread, and the window's before.
AGE, LOWEST, CALMEST, EVENEST, BEFORE = 23, 24, 25, 26, 27
NOISY, QUIET = 30, 31  # noisy rounds in a row; time since the last that was half as noisy, s
SLOW = 32  # 1 in slow start
SHORT_ENTRIES, NOISY_ENTRIES, OUTSIDE_TIME = 33, 34, 35  # times outside by cause, and how long, s
LOST_LATELY = 36  # for how long a loss still counts as one of the last round trips, s
STATE_SIZE = 37
OUTSIDE = 2.0


@njit
def _reduce(s: FloatArray) -> None:
    """Fall after a loss (sections 4.6 and 4.7)."""
    before = s[WINDOW]
    s[W_MAX] = before * (1.0 + BETA) / 2.0 if before < s[W_MAX] else before
    s[WINDOW] = max(before * BETA, MIN_CWND)
    _begin_epoch(s)


@njit
def _begin_epoch(s: FloatArray) -> None:
    """Let the cubic begin where the window is."""
    s[SLOW] = s[EPOCH] = 0.0
    s[W_EST] = s[WINDOW]
    s[K] = (max(s[W_MAX] - s[WINDOW], 0.0) / C) ** (1.0 / 3.0)


@njit
def _grow(s: FloatArray) -> None:
    """Grow along the cubic, or as Reno if that is more (sections 4.2 to 4.5)."""
    window = s[WINDOW]
    # Slow start, which ends with the first loss, or where the last one left the window.
    if s[SLOW] == 1.0:
        s[WINDOW] = window + s[ACKED]
        if s[W_MAX] > 0.0 and s[WINDOW] >= BETA * s[W_MAX]:
            _begin_epoch(s)
        return
    acked = min(s[ACKED], window)
    t = s[EPOCH] - s[K]
    target = min(max(C * t * t * t + s[W_MAX], window), 1.5 * window)
    s[W_EST] += ALPHA * acked / window
    s[WINDOW] = max(window + (target - window) * acked / window, s[W_EST])


@njit
def _follow_cubic(s: FloatArray, lost: float, inflight: float) -> None:
    """Take a step by CUBIC's rule: one reduction per round trip."""
    if lost > 0.0 and s[EPOCH] >= s[SRTT]:
        _reduce(s)
    elif lost <= 0.0 and s[ACKED] > 0.0 and inflight + 2.0 * s[ACKED] >= s[WINDOW]:
        _grow(s)
    s[WINDOW] = min(s[WINDOW], MOST_CWND)


@njit
def _least_of(a: float, b: float) -> float:
    """Return the lesser, where 0 means none."""
    return b if a == 0.0 else (a if b == 0.0 else min(a, b))


@njit
def _look_for_noise(s: FloatArray, held: float) -> None:
    """Compare the round's RTTs with those of the last one to two windows, and begin the next."""
    mean, least = s[NOISE_SUM] / s[NOISE_ACKED], s[NOISE_LEAST]
    packet = s[NOISE_TIME] / s[NOISE_ACKED]
    # What they had least, each in its own round.
    s[AGE] += s[NOISE_TIME]
    for k, value in enumerate((least, mean, mean - least + 1e-9)):
        if s[AGE] >= WINDOW_S:
            s[BEFORE + k], s[LOWEST + k] = s[LOWEST + k], 0.0
        s[LOWEST + k] = _least_of(s[LOWEST + k], value)
    if s[AGE] >= WINDOW_S:
        s[AGE] = 0.0
    path = _least_of(s[LOWEST], s[BEFORE])
    noise, most = _least_of(s[CALMEST], s[BEFORE + 1]) - path, max(held, path * NOISE_OF_PATH)
    spread = _least_of(s[EVENEST], s[BEFORE + 2])
    noisy = noise > most and spread > SPREAD and noise > packet
    s[NOISY] = s[NOISY] + 1.0 if noisy and mean - least <= UNEVEN * noise else 0.0
    quiet = noise < most / 2.0 or spread < SPREAD / 2.0
    s[QUIET] = s[QUIET] + s[NOISE_TIME] if quiet else 0.0
    s[NOISE_ACKED] = s[NOISE_SUM] = s[NOISE_LEAST] = s[NOISE_TIME] = 0.0


@njit
def _judge_path(
    s: FloatArray, duration: float, rtt_sum: float, rtt_min: float, cwnd: float, held: float
) -> None:
    """Let CUBIC's rule have the window where the path is outside of what policies hold."""
    # The round's RTTs.
    s[OUTSIDE_TIME] += duration * (s[ON] == OUTSIDE)
    s[NOISE_TIME] += duration
    if s[ACKED] > 0.0:
        s[NOISE_ACKED] += s[ACKED]
        s[NOISE_SUM] += rtt_sum
        s[NOISE_LEAST] = _least_of(s[NOISE_LEAST], rtt_min)
    if s[NOISE_ACKED] >= NOISY_PACKETS and s[NOISE_TIME] >= s[SRTT]:
        _look_for_noise(s, held)
    # In, or out.
    least = _least_of(_least_of(s[LOWEST], s[BEFORE]), s[NOISE_LEAST])
    short = 0.0 < least < LEAST_PATH
    if s[ON] == OUTSIDE:
        patience = QUIET_S * 2.0 ** min(s[NOISY_ENTRIES] - 1.0, 5.0)
        if not short and s[QUIET] >= patience * (s[NOISY_ENTRIES] > 0.0):
            s[ON] = s[BAD] = s[CALM] = 0.0
    elif short or s[NOISY] >= NOISY_ROUNDS:
        s[ON], s[SLOW], s[EPOCH], s[QUIET] = OUTSIDE, 1.0, s[SRTT], 0.0
        s[WINDOW] = max(cwnd, MIN_CWND)
        s[SHORT_ENTRIES if short else NOISY_ENTRIES] += 1.0


@njit
def observe(rows: FloatArray, seen: FloatArray, bound: float, held: float) -> None:
    """Count a step of every flow in its row, ``[N, STATE_SIZE]``.

    ``seen`` ``[7, N]`` holds the step's duration (s), packets acknowledged and lost (net), sum and
    least of RTTs (s), packets in flight and the window. CUBIC's rule gets short paths, and those
    with a noise above ``held``, s; with 0 it gets none.
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
        lately = LOSS_RTTS * max(s[SRTT], duration)
        s[LOST_LATELY] = lately if lost > 0.0 else s[LOST_LATELY] - duration
        s[EPOCH] += duration
        if s[ON] > 0.0:
            _follow_cubic(s, lost, inflight)
        if held > 0.0:
            _judge_path(s, duration, rtt_sum, rtt_min, cwnd, held)
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


@njit
def hold(
    rows: FloatArray,
    held: FloatArray,
    chosen: FloatArray,
    lowered: NDArray[np.bool_],
    pacing: float,
    bound: float,
) -> None:
    """Bound the windows and rates ``chosen``, ``[2, N]``, given those held now; return them.

    ``lowered`` takes where the window is less than the one chosen, or CUBIC's rule has it alone.
    """
    for n in range(len(rows)):
        s, cwnd = rows[n], chosen[0, n]
        if bound > 0.0:
            most = max(held[n], MIN_CWND) + GROWTH * s[ACKED]
            if s[TOP] > 0.0:
                most = min(most, MOST_BDP * s[TOP] * max(s[LEAST], LEAST_PATH) + SPARE)
            cwnd = min(cwnd, most)
            if s[ON] == 1.0:
                cwnd = min(cwnd, s[WINDOW])
            cwnd = s[WINDOW] if s[ON] == OUTSIDE else max(cwnd, MIN_CWND)
            lowered[n] = cwnd < chosen[0, n] or s[ON] == OUTSIDE
        if pacing > 0.0:
            no_room = s[LOST_LATELY] > 0.0 and (s[SRTT] - s[EVER]) * s[TOP] < ROOM
            gain = min(pacing, GENTLE) if no_room else pacing
            chosen[1, n] = gain * cwnd / max(s[SRTT], 1e-6) if s[SRTT] > 0.0 else 0.0
        chosen[0, n] = cwnd


class WindowControl:
    """The guard and the pacing of N flows."""

    def __init__(self, n: int, pacing: float, guard: float, held: float = 0.0) -> None:
        """Take the pacing's gain, the guard's bound and the noise held, s; 0 is without each."""
        self.pacing, self.guard, self.held = pacing, guard, held
        self.state = np.zeros((n, STATE_SIZE))
        self.on = self.state[:, ON]
        """1 where CUBIC's rule bounds the window, `OUTSIDE` where it has it alone, ``[N]``."""
        self.lowered = np.zeros(n, np.bool_)
        """Whether the guard lowered the newest window, or CUBIC's rule had it alone, ``[N]``."""
        if pacing or guard:  # compiled code is loaded now, not in a flow's first step
            observe(np.zeros((0, STATE_SIZE)), np.zeros((7, 0)), guard, held)
            hold(self.state[:0], np.zeros(0), np.zeros((2, 0)), self.lowered, pacing, guard)

    def reset(self, which: NDArray[np.int64]) -> None:
        """Begin some flows anew."""
        self.state[which] = 0.0
        self.lowered[which] = False

    def observe(self, stats: IntervalStats) -> None:
        """Count a step of the flows, ``[N]``."""
        if not (self.pacing or self.guard):
            return
        columns = (
            *(stats.duration, stats.acked, stats.net_lost, stats.rtt_sum, stats.rtt_min),
            *(stats.inflight, stats.cwnd),
        )
        observe(self.state, np.array(columns), self.guard, self.held)

    def apply(
        self, held: tuple[FloatArray, FloatArray], chosen: tuple[FloatArray, FloatArray]
    ) -> tuple[FloatArray, FloatArray]:
        """Return the windows and pacing rates to hold, of those held and those chosen, ``[N]``."""
        if not (self.pacing or self.guard):
            return chosen
        both, self.lowered = np.array(chosen, float), np.zeros(len(self.state), np.bool_)
        hold(self.state, held[0], both, self.lowered, self.pacing, self.guard)
        return both[0], both[1]
