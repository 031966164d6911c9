"""The compiled dispatch on a scheme's number, and `SchemeController`.

Left out on purpose: a table of functions. A call through a pointer cannot be inlined; a chain of
comparisons can. A user's scheme alone is called so, at the end of the chain.
"""

import numpy as np

from distrlcc.control import bbr, copa, cubic, ledbat, reno, vegas
from distrlcc.control.base import Controller
from distrlcc.control.compiled import njit, njit_inner
from distrlcc.control.state import CWND, INITIAL_CWND, PACING, SCHEMES, STATE_SIZE
from distrlcc.control.user_scheme import INITIALISE, ON_ACK, ON_TIMEOUT, call
from distrlcc.types import Ack, FloatArray

AGENT, ORACLE, FIXED, RENO, CUBIC, VEGAS, COPA, BBR, LEDBAT = SCHEMES.values()


MOST_CWND, MOST_RATE = 1e9, 1e12


@njit_inner
def _bound(s: FloatArray) -> None:
    """Stop a user's scheme whose window or pacing rate is invalid: it sends no more."""
    if not (1.0 <= s[CWND] <= MOST_CWND and 0.0 <= s[PACING] <= MOST_RATE):
        s[CWND] = s[PACING] = 0.0


@njit
def initialise(scheme: int, s: FloatArray, now: int, seed: int, parameter: float) -> None:
    """Zero the row and start the scheme; ``parameter`` is the window of FIXED, packets."""
    s[:] = 0.0
    s[CWND] = INITIAL_CWND
    s[PACING] = 0.0
    if scheme == FIXED:
        s[CWND] = parameter
    elif scheme == RENO:
        reno.initialise(s)
    elif scheme == CUBIC:
        cubic.initialise(s)
    elif scheme == VEGAS:
        vegas.initialise(s)
    elif scheme == COPA:
        copa.initialise(s, now)
    elif scheme == BBR:
        bbr.initialise(s, now, seed)
    elif scheme == LEDBAT:
        ledbat.initialise(s, now)
    elif scheme > LEDBAT:
        call(scheme, INITIALISE, s, now, 0, seed, 0, 0, 0, 0, 0, 0, 0.0)
        _bound(s)


@njit
def on_ack(
    scheme: int,
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
    marked: int,
) -> None:
    """Tell the scheme of one ACK; see `distrlcc.control.state` for the arguments."""
    if scheme == RENO:
        reno.on_ack(s, seq, sent, lost, marked)
    elif scheme == CUBIC:
        cubic.on_ack(s, now, rtt, seq, sent, lost, marked)
    elif scheme == VEGAS:
        vegas.on_ack(s, rtt, seq, sent, lost, marked)
    elif scheme == COPA:
        copa.on_ack(s, now, rtt, seq, sent, lost, rate, marked)
    elif scheme == BBR:
        bbr.on_ack(s, now, rtt, seq, sent, lost, inflight, delivered, prior_delivered, rate)
    elif scheme == LEDBAT:
        ledbat.on_ack(s, now, rtt, seq, sent, lost, inflight, marked)
    elif scheme > LEDBAT:
        counts = now, rtt, seq, sent, lost, inflight, delivered, prior_delivered, marked
        call(scheme, ON_ACK, s, *counts, rate)
        _bound(s)


@njit
def copy_row(source: FloatArray, to: FloatArray) -> None:
    """Copy a scheme's row."""
    for k in range(STATE_SIZE):
        to[k] = source[k]


@njit
def undo(s: FloatArray, before: FloatArray) -> None:
    """Restore a scheme's row from before a spurious recovery or timeout (RFC 4015 section 3.3).

    The window does not shrink. The scheme measures anew what it measured meanwhile.
    """
    cwnd = max(s[CWND], before[CWND])
    copy_row(before, s)
    s[CWND] = cwnd


@njit
def on_timeout(scheme: int, s: FloatArray, sent: int) -> None:
    """Tell the scheme that nothing was acknowledged for a timeout (RFC 6298)."""
    if scheme in (RENO, LEDBAT):
        reno.on_timeout(s, sent)
    elif scheme == CUBIC:
        cubic.on_timeout(s, sent)
    elif scheme == VEGAS:
        vegas.on_timeout(s, sent)
    elif scheme == COPA:
        copa.on_timeout(s, sent)
    elif scheme == BBR:
        bbr.on_timeout(s, sent)
    elif scheme > LEDBAT:
        call(scheme, ON_TIMEOUT, s, 0, 0, 0, sent, 0, 0, 0, 0, 0, 0.0)
        _bound(s)


class SchemeController(Controller):
    """One flow of a scheme, such as ``SchemeController("fixed", parameter=20)``.

    A scheme is a name of `distrlcc.control.state.SCHEMES`, but for ``agent`` and ``oracle``, which
    have no compiled functions, or a reference to a `distrlcc.control.state.Scheme`; raises
    ConfigError at others. The flow starts at ``now``, ns; ``seed`` chooses what the scheme draws
    (BBR's first phase of PROBE_BW), and ``parameter`` is the window of ``fixed``, packets.
    """

    def __init__(
        self, scheme_name: str, *, now: int = 0, seed: int = 0, parameter: float = INITIAL_CWND
    ) -> None:
        self._scheme = SCHEMES[SCHEMES.pinned(scheme_name, without=("agent", "oracle"))]
        self._seed, self._parameter = seed, float(parameter)
        self.state = np.zeros(STATE_SIZE)  # the scheme's row; see `distrlcc.control.state`
        self._before = np.zeros(STATE_SIZE)
        self.begin(now=now)

    def begin(self, *, now: int) -> None:
        """Start anew, where the flow starts later than was known."""
        self._timed_out = False
        initialise(self._scheme, self.state, now, self._seed, self._parameter)

    @property
    def cwnd(self) -> float:
        """Congestion window, packets."""
        return float(self.state[CWND])

    @property
    def pacing_rate(self) -> float:
        """Pacing rate, packets/s; 0 means that the window alone limits."""
        return float(self.state[PACING])

    def on_ack(self, ack: Ack, *, now: int) -> None:
        """Take one acknowledgement; undo what the sender found spurious."""
        self._timed_out = False
        if ack.undone:
            undo(self.state, self._before)
        if ack.begins_recovery:
            self._before[:] = self.state
        counts = ack.seq, ack.sent, ack.lost, ack.inflight, ack.delivered, ack.prior_delivered
        rate = float(ack.delivery_rate)
        on_ack(self._scheme, self.state, now, ack.rtt_ns, *counts, rate, ack.marked)

    def on_timeout(self, *, now: int, sent: int) -> None:
        """React to a timeout."""
        if not self._timed_out:
            self._before[:] = self.state
        self._timed_out = True
        on_timeout(self._scheme, self.state, sent)
