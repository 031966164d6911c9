"""One flow's controller state: a float64 row whose first elements every scheme shares.

A scheme is a module of compiled functions over the row ``s``, which take of these arguments what
they need:

- ``initialise(s, now, seed)`` at the flow's start, on a row of zeros with the initial window;
- ``on_ack(s, now, rtt, seq, sent, lost, inflight, delivered, prior_delivered, rate)`` once per ACK;
- ``on_timeout(s, sent)`` when nothing was sent or acknowledged for one second.

``now`` and ``rtt`` are int64 nanoseconds, counts are int64 packets (see `distrlcc.types.Ack`),
``rate`` is float64 packets per second. The sender reads ``s[CWND]`` and ``s[PACING]`` afterwards.
"""

CWND = 0  # congestion window, packets; the sender keeps fewer than ``floor(s[CWND])`` in flight
PACING = 1  # pacing rate, packets per second; 0 means that the window alone limits
FIRST_FREE = 2  # the first element that a scheme may use as it likes
STATE_SIZE = 48  # elements in a row
INITIAL_CWND = 10.0  # initial window, packets (RFC 6928)
MIN_CWND = 2.0  # least window of all schemes, packets (a timeout may go to 1)
