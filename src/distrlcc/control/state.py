"""The schemes, and one flow's state: a float64 row whose first elements every scheme shares.

A scheme is a module of compiled functions over the row ``s``: ``initialise``, ``on_ack`` and
``on_timeout``. Each takes the arguments that it needs; those of a user's `Scheme` take them all.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from distrlcc.plugins import Registry
from distrlcc.types import FloatArray

_NAMES = ("agent", "oracle", "fixed", "reno", "cubic", "vegas", "copa", "bbr", "ledbat")
CWND = 0  # congestion window, packets; the sender keeps fewer than ``floor(s[CWND])`` in flight
PACING = 1  # pacing rate, packets per second; 0 means that the window alone limits
FIRST_FREE = 2  # the first element that a scheme may use as it likes
STATE_SIZE = 48  # elements in a row
INITIAL_CWND = 10.0  # initial window, packets (RFC 6928)
MIN_CWND = 2.0  # least window of all schemes and actions, packets (a timeout may go to 1)
MAX_CWND = 32768.0  # greatest window of actions, packets: 1 Gbit/s at 390 ms
LEAST_PATH = 0.002  # RTTs below, s, count as one of it for policies: hosts' own noise is as long


class OnAck(Protocol):
    """A scheme's work at each ACK, over its flow's row ``s`` of `STATE_SIZE` numbers."""

    def __call__(
        self,
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
        /,
    ) -> None:
        """Set ``s[CWND]``, packets, and ``s[PACING]``, packets/s, which the sender reads after it.

        ``now`` and ``rtt`` are ns; ``rate``, of delivery, is packets/s. The others count packets,
        see `distrlcc.types.Ack`. From ``s[FIRST_FREE]`` on the row is the scheme's own.
        """


class Scheme(NamedTuple):
    """A user's scheme: functions that numba can compile; what they call is compiled already."""

    initialise: Callable[[FloatArray, int, int], None]
    """Function of ``s, now, seed`` at the flow's start: a row of zeros with an initial window."""
    on_ack: OnAck
    on_timeout: Callable[[FloatArray, int], None]
    """Function of ``s, sent`` when nothing was acknowledged for a timeout. If that proves spurious,
    the row from before it is put back, as it is after spurious losses."""


def _number(found: Any) -> int:
    from distrlcc.control.user_scheme import compiled  # noqa: PLC0415 - imports numba

    return compiled(Scheme(*found), STATE_SIZE, CWND)


SCHEMES: Registry[int] = Registry("scheme", {name: k for k, name in enumerate(_NAMES)}, _number)
"""Number of each scheme by its name; a user's has the address of its code. The window of ``agent``
comes from outside, such as a policy. The simulator sets that of ``oracle`` from the link at each
step. That of ``fixed`` is the parameter."""


def scheme_name(number: int) -> str:
    """Return the name, or the reference, of a scheme's number."""
    return next(name for name, k in (SCHEMES | SCHEMES.loaded).items() if k == number)
