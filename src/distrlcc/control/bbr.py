"""BBR version 1: draft-cardwell-iccrg-bbr-congestion-control-00.

What happens at an ACK and the control parameters; `bbr_model` estimates the path, `bbr_states` is
the state machine. Packets leave one by one, so the send quantum is one packet. Lost packets are
not sent again, so fast recovery lasts one round, all of which conserves packets (section 4.2.3.4).
"""

from __future__ import annotations

from distrlcc.control.bbr_model import (
    BTLBW,
    FILLED_PIPE,
    check_full_pipe,
    initialise_model,
    target_inflight,
    update_btlbw,
    update_rtprop,
)
from distrlcc.control.bbr_states import (
    CWND_GAIN,
    HIGH_GAIN,
    IN_RECOVERY,
    MIN_PIPE_CWND,
    MODE,
    PACING_GAIN,
    PRIOR_CWND,
    PROBE_BW,
    PROBE_RTT,
    PROBE_RTT_DONE,
    QUANTA,
    RANDOM,
    RECOVER,
    STARTUP,
    advance_cycle_phase,
    check_drain,
    check_probe_rtt,
    enter,
    is_next_cycle_phase,
    save_cwnd,
)
from distrlcc.control.compiled import njit_inner
from distrlcc.control.state import CWND, INITIAL_CWND, PACING
from distrlcc.types import FloatArray

NOMINAL_RTT = 1e-3
"""RTT that the first pacing rate assumes, s (section 4.2.1)."""


@njit_inner
def initialise(s: FloatArray, now: int, seed: int) -> None:
    """Enter STARTUP (section 4.3.2.1); the seed chooses PROBE_BW's first phases."""
    initialise_model(s, now)
    s[CWND] = INITIAL_CWND
    s[PACING] = HIGH_GAIN * INITIAL_CWND / NOMINAL_RTT
    s[PRIOR_CWND] = 0.0
    s[PROBE_RTT_DONE] = 0.0
    s[IN_RECOVERY] = 0.0
    s[RECOVER] = 0.0
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
def on_timeout(s: FloatArray, now: int, sent: int) -> None:
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
