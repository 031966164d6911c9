"""The schemes' names, and one flow's state: a float64 row whose first elements every scheme shares.

A scheme is a module of compiled functions over the row ``s``, which take of these arguments what
they need:

- ``initialise(s, now, seed)`` at the flow's start, on a row of zeros with the initial window;
- ``on_ack(s, now, rtt, seq, sent, lost, inflight, delivered, prior_delivered, rate, marked)`` once
  per ACK;
- ``on_timeout(s, sent)`` when nothing was sent or acknowledged for one second.

``now`` and ``rtt`` are int64 nanoseconds, counts are int64 packets (see `distrlcc.types.Ack`),
``rate`` is float64 packets per second. The sender reads ``s[CWND]`` and ``s[PACING]`` afterwards.
"""

from distrlcc.errors import unknown_name

_NAMES = ("agent", "oracle", "fixed", "reno", "cubic", "vegas", "copa", "bbr", "ledbat")
SCHEMES: dict[str, int] = {name: number for number, name in enumerate(_NAMES)}
"""Number of each scheme by its name. The window of ``agent`` comes from outside, such as a policy;
that of ``oracle`` is set by the simulator from the link at each step; that of ``fixed`` is the
parameter."""

CWND = 0  # congestion window, packets; the sender keeps fewer than ``floor(s[CWND])`` in flight
PACING = 1  # pacing rate, packets per second; 0 means that the window alone limits
FIRST_FREE = 2  # the first element that a scheme may use as it likes
STATE_SIZE = 48  # elements in a row
INITIAL_CWND = 10.0  # initial window, packets (RFC 6928)
MIN_CWND = 2.0  # least window of all schemes, packets (a timeout may go to 1)


def scheme_id(name: str) -> int:
    """Return a scheme's number.

    Raises:
        ConfigError: No scheme has the name; the message lists near and valid ones.
    """
    if name not in SCHEMES:
        raise unknown_name("scheme", name, SCHEMES)
    return SCHEMES[name]
