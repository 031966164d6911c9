"""The schemes, and one flow's state: a float64 row whose first elements every scheme shares.

A scheme is a module of compiled functions over the row ``s``, which take of these arguments what
they need; a user's is a `Scheme` of functions that take them all:

- ``initialise(s, now, seed)`` at the flow's start, on a row of zeros with the initial window;
- ``on_ack(s, now, rtt, seq, sent, lost, inflight, delivered, prior_delivered, rate, marked)`` once
  per ACK;
- ``on_timeout(s, sent)`` when nothing was sent or acknowledged for one second.

``now`` and ``rtt`` are int64 nanoseconds, counts are int64 packets (see `distrlcc.types.Ack`),
``rate`` is float64 packets per second. The sender reads ``s[CWND]`` and ``s[PACING]`` afterwards.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from distrlcc.plugins import Registry

_NAMES = ("agent", "oracle", "fixed", "reno", "cubic", "vegas", "copa", "bbr", "ledbat")
CWND = 0  # congestion window, packets; the sender keeps fewer than ``floor(s[CWND])`` in flight
PACING = 1  # pacing rate, packets per second; 0 means that the window alone limits
FIRST_FREE = 2  # the first element that a scheme may use as it likes
STATE_SIZE = 48  # elements in a row
INITIAL_CWND = 10.0  # initial window, packets (RFC 6928)
MIN_CWND = 2.0  # least window of all schemes, packets (a timeout may go to 1)


class Scheme(NamedTuple):
    """A user's scheme: functions that numba can compile; what they call is compiled already."""

    initialise: Callable[..., Any]
    on_ack: Callable[..., Any]
    on_timeout: Callable[..., Any]


def _number(found: Any) -> int:
    from distrlcc.control.user_scheme import compiled  # noqa: PLC0415 - imports numba

    return compiled(Scheme(*found), STATE_SIZE, CWND)


SCHEMES: Registry[int] = Registry("scheme", {name: k for k, name in enumerate(_NAMES)}, _number)
"""Number of each scheme by its name; a user's has the address of its code. The window of ``agent``
comes from outside, such as a policy; that of ``oracle`` is set by the simulator from the link at
each step; that of ``fixed`` is the parameter."""


def scheme_name(number: int) -> str:
    """Return the name, or the reference, of a scheme's number."""
    return next(name for name, k in (SCHEMES | SCHEMES.loaded).items() if k == number)
