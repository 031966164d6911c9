"""The schemes by name and number, and the compiled dispatch on the number.

Left out on purpose: a table of functions. A call through a pointer can be neither inlined nor
cached by numba; a chain of comparisons can.
"""

from __future__ import annotations

from distrlcc.control import bbr, copa, cubic, fixed, ledbat, reno, vegas
from distrlcc.control.compiled import njit
from distrlcc.control.state import CWND, INITIAL_CWND, PACING
from distrlcc.errors import unknown_name
from distrlcc.types import FloatArray

AGENT = 0
"""The window comes from outside, such as a policy."""
ORACLE = 1
"""The simulator sets the window from the link at each step."""
FIXED = 2
"""The window is the parameter."""
RENO = 3
CUBIC = 4
VEGAS = 5
COPA = 6
BBR = 7
LEDBAT = 8

SCHEMES: dict[str, int] = {
    "agent": AGENT,
    "oracle": ORACLE,
    "fixed": FIXED,
    "reno": RENO,
    "cubic": CUBIC,
    "vegas": VEGAS,
    "copa": COPA,
    "bbr": BBR,
    "ledbat": LEDBAT,
}
"""Number of each scheme by its name."""


def scheme_id(name: str) -> int:
    """Return a scheme's number.

    Raises:
        ConfigError: No scheme has the name; the message lists near and valid ones.
    """
    if name not in SCHEMES:
        raise unknown_name("scheme", name, SCHEMES)
    return SCHEMES[name]


@njit
def initialise(scheme: int, s: FloatArray, now: int, seed: int, parameter: float) -> None:
    """Zero the row and start the scheme; ``parameter`` is the window of FIXED, packets."""
    s[:] = 0.0
    s[CWND] = INITIAL_CWND
    s[PACING] = 0.0
    if scheme == FIXED:
        fixed.initialise(s, now, seed)
        s[CWND] = parameter
    elif scheme == RENO:
        reno.initialise(s, now, seed)
    elif scheme == CUBIC:
        cubic.initialise(s, now, seed)
    elif scheme == VEGAS:
        vegas.initialise(s, now, seed)
    elif scheme == COPA:
        copa.initialise(s, now, seed)
    elif scheme == BBR:
        bbr.initialise(s, now, seed)
    elif scheme == LEDBAT:
        ledbat.initialise(s, now, seed)


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
) -> None:
    """Tell the scheme of one ACK; see `distrlcc.control.state` for the arguments."""
    if scheme == RENO:
        reno.on_ack(s, now, rtt, seq, sent, lost, inflight, delivered, prior_delivered, rate)
    elif scheme == CUBIC:
        cubic.on_ack(s, now, rtt, seq, sent, lost, inflight, delivered, prior_delivered, rate)
    elif scheme == VEGAS:
        vegas.on_ack(s, now, rtt, seq, sent, lost, inflight, delivered, prior_delivered, rate)
    elif scheme == COPA:
        copa.on_ack(s, now, rtt, seq, sent, lost, inflight, delivered, prior_delivered, rate)
    elif scheme == BBR:
        bbr.on_ack(s, now, rtt, seq, sent, lost, inflight, delivered, prior_delivered, rate)
    elif scheme == LEDBAT:
        ledbat.on_ack(s, now, rtt, seq, sent, lost, inflight, delivered, prior_delivered, rate)


@njit
def on_timeout(scheme: int, s: FloatArray, now: int, sent: int) -> None:
    """Tell the scheme that nothing was sent or acknowledged for one second."""
    if scheme == RENO:
        reno.on_timeout(s, now, sent)
    elif scheme == CUBIC:
        cubic.on_timeout(s, now, sent)
    elif scheme == VEGAS:
        vegas.on_timeout(s, now, sent)
    elif scheme == COPA:
        copa.on_timeout(s, now, sent)
    elif scheme == BBR:
        bbr.on_timeout(s, now, sent)
    elif scheme == LEDBAT:
        ledbat.on_timeout(s, now, sent)
