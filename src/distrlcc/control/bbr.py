"""BBR version 1: draft-cardwell-iccrg-bbr-congestion-control-00.

Names and sections are the draft's. The model of the path comes first (rounds, bottleneck bandwidth,
round-trip propagation time, full pipe). The state machine follows (STARTUP, DRAIN, PROBE_BW with
its gain cycle, PROBE_RTT), and then the work at an ACK. Packets leave one by one, so the send
quantum is one packet. Lost packets are not sent again, so fast recovery lasts one round, all of
which conserves packets (section 4.2.3.4). Version 1 ignores marks (ECN).
"""

import math

import numpy as np

from distrlcc.control.compiled import njit_inner
from distrlcc.control.state import CWND, FIRST_FREE, INITIAL_CWND, PACING
from distrlcc.control.windowed import FILTER_SIZE, reset, running_max
from distrlcc.types import FloatArray

ROUND_COUNT = FIRST_FREE + 0  # packet-timed round trips so far
ROUND_START = FIRST_FREE + 1  # 1 at the ACK that starts a round
NEXT_ROUND_DELIVERED = FIRST_FREE + 2  # a packet sent with this many delivered starts a round
BTLBW = FIRST_FREE + 3  # estimated bottleneck bandwidth, packets/s
RTPROP = FIRST_FREE + 4  # estimated propagation time, ns; infinite before the first sample
RTPROP_STAMP = FIRST_FREE + 5  # when RTPROP was last seen, ns
RTPROP_EXPIRED = FIRST_FREE + 6  # 1 at an ACK that found RTPROP too old
FULL_BW = FIRST_FREE + 7  # bandwidth at the last round that grew by a quarter, packets/s
FULL_COUNT = FIRST_FREE + 8  # rounds since then
FILLED_PIPE = FIRST_FREE + 9  # 1 once the pipe was found full
# PROBE_RTT holds the flow below the path's rate: a sample sent meanwhile says too little.
LIMITED_FROM = FIRST_FREE + 10  # packets delivered when it last began to
LIMITED_TO = FIRST_FREE + 11  # packets delivered once all that it held back were
SAMPLE_LIMITED = FIRST_FREE + 12  # 1 if the newest sample is such a one (the draft's app-limited)
BTLBW_FILTER = np.int64(FIRST_FREE + 13)  # filter: greatest delivery rate of ten rounds
MODEL_END = FIRST_FREE + 13 + FILTER_SIZE  # first element after the model's

BTLBW_FILTER_LENGTH = 10.0  # window of the bandwidth filter, rounds (section 4.1.1.3)
RTPROP_FILTER_LENGTH = 10e9  # window of the RTT filter, ns (section 4.1.2.3)
FULL_BW_GROWTH = 1.25  # growth per round that shows a pipe that is not full (section 4.3.2.2)
FULL_BW_ROUNDS = 3.0  # rounds without such growth that show a full one


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


MODE = MODEL_END + 0  # STARTUP, DRAIN, PROBE_BW or PROBE_RTT
PACING_GAIN = MODEL_END + 1  # pacing rate over BTLBW
CWND_GAIN = MODEL_END + 2  # window over the bandwidth-delay product
CYCLE_INDEX = MODEL_END + 3  # phase of PROBE_BW
CYCLE_STAMP = MODEL_END + 4  # when the phase began, ns
PROBE_RTT_DONE = MODEL_END + 5  # when PROBE_RTT may end, ns; 0 before the window is down
PROBE_RTT_ROUND = MODEL_END + 6  # 1 once a round passed in PROBE_RTT
PRIOR_CWND = MODEL_END + 7  # window to restore after recovery or PROBE_RTT, packets
IN_RECOVERY = MODEL_END + 8  # 1 in fast recovery, 2 after a timeout, else 0
RECOVER = MODEL_END + 9  # next sequence number when recovery began
RANDOM = MODEL_END + 10  # state of the generator of PROBE_BW's first phase

STARTUP, DRAIN, PROBE_BW, PROBE_RTT = 0.0, 1.0, 2.0, 3.0

HIGH_GAIN = 2 / math.log(2)  # least gain that doubles the rate each round (section 4.3.2.1)
CYCLE_LENGTH = 8  # phases of PROBE_BW: gains 1.25, 0.75 and six times 1 (section 4.3.4)
PROBE_BW_CWND_GAIN = 2.0  # window gain of PROBE_BW (section 4.3.4.3)
MIN_PIPE_CWND = 4.0  # least window, and that of PROBE_RTT, packets (section 4.2.3.3)
PROBE_RTT_DURATION = 200e6  # least time at the least window, ns (section 4.3.5)
QUANTA = 3.0  # three send quanta on top of the bandwidth-delay product (section 4.2.3.2)


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


NOMINAL_RTT = 1e-3  # RTT that the first pacing rate assumes, s (section 4.2.1)


@njit_inner
def initialise(s: FloatArray, now: int, seed: int) -> None:
    """Enter STARTUP (section 4.3.2.1); the seed chooses PROBE_BW's first phases."""
    s[RTPROP] = np.inf
    s[RTPROP_STAMP] = now
    s[LIMITED_TO] = -1.0
    reset(s, BTLBW_FILTER, 0.0, np.inf)
    s[PACING] = HIGH_GAIN * INITIAL_CWND / NOMINAL_RTT
    s[RANDOM] = (seed * 1_000_003 + 12_345) % 2_147_483_646 + 1
    enter(s, STARTUP, HIGH_GAIN, HIGH_GAIN)


@njit_inner
def on_ack(
    s: FloatArray,
    now: int,
    rtt: int,
    seq: int,
    sent: int,
    lost: int,
    inflight: int,
    delivered: int,
    prior_delivered: int,
    rate: float,
) -> None:
    """Update the model, the state and the control parameters, in the draft's order."""
    update_btlbw(s, delivered, prior_delivered, rate)
    prior_inflight = inflight + lost + 1
    if s[MODE] == PROBE_BW and is_next_cycle_phase(s, now, lost, prior_inflight):
        advance_cycle_phase(s, now)
    check_full_pipe(s)
    check_drain(s, now, inflight)
    update_rtprop(s, now, rtt)
    check_probe_rtt(s, now, inflight, delivered)
    _update_recovery(s, seq, sent, lost, inflight)
    _set_pacing_rate(s)
    _set_cwnd(s, lost, inflight, delivered)


@njit_inner
def on_timeout(s: FloatArray, sent: int) -> None:
    """Go back to one packet until one sent from now on is acknowledged (section 4.2.3.4)."""
    save_cwnd(s)
    s[CWND] = 1.0
    s[IN_RECOVERY] = 2.0
    s[RECOVER] = sent


@njit_inner
def _update_recovery(s: FloatArray, seq: int, sent: int, lost: int, inflight: int) -> None:
    """Leave and enter recovery (section 4.2.3.4)."""
    if s[IN_RECOVERY] != 0.0 and seq >= s[RECOVER]:
        s[IN_RECOVERY] = 0.0
        s[CWND] = max(s[CWND], s[PRIOR_CWND])
    if s[IN_RECOVERY] == 0.0 and lost > 0 and seq > s[RECOVER]:
        save_cwnd(s)
        s[CWND] = inflight + 1.0
        s[IN_RECOVERY] = 1.0
        s[RECOVER] = sent


@njit_inner
def _set_pacing_rate(s: FloatArray) -> None:
    """Pace at the gain times the bandwidth; in STARTUP never slower (section 4.2.1)."""
    pacing = s[PACING_GAIN] * s[BTLBW]
    if s[FILLED_PIPE] == 1.0 or pacing > s[PACING]:
        s[PACING] = pacing


@njit_inner
def _set_cwnd(s: FloatArray, lost: int, inflight: int, delivered: int) -> None:
    """Move the window towards its target (section 4.2.3.6)."""
    target = target_inflight(s, s[CWND_GAIN], QUANTA)
    cwnd = s[CWND]
    if lost > 0 and s[IN_RECOVERY] != 0.0:
        cwnd = max(cwnd - lost, 1.0)
    if s[IN_RECOVERY] == 1.0:
        cwnd = max(cwnd, inflight + 1.0)
    else:
        if s[FILLED_PIPE] == 1.0:
            cwnd = min(cwnd + 1.0, target)
        elif cwnd < target or delivered < INITIAL_CWND:
            cwnd += 1.0
        cwnd = max(cwnd, MIN_PIPE_CWND)
    if s[MODE] == PROBE_RTT:
        cwnd = min(cwnd, MIN_PIPE_CWND)
    s[CWND] = cwnd
