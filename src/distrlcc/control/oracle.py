"""The oracle: a controller that knows its link's rate and holds the bandwidth-delay product."""

from __future__ import annotations

import math

from distrlcc.control.state import INITIAL_CWND, MIN_CWND
from distrlcc.types import NANOSECONDS, PACKET_BYTES, Ack, IntervalStats


class Oracle:
    """Keep ``rate * min RTT`` packets in flight: the full rate without a queue.

    The window is rounded up, as the sender counts whole packets and one too few leaves a gap. The
    least RTT is the flow's own, so the link must stand empty at least once; it does at the start.

    Args:
        rate_bps: The link's rate, bit/s; set `rate_bps` again when it changes.
        packet_bytes: A packet's size on the wire, bytes.
    """

    def __init__(self, *, rate_bps: float, packet_bytes: int = PACKET_BYTES) -> None:
        self.rate_bps = rate_bps
        self._packet_bits = 8 * packet_bytes
        self._min_rtt_ns = 0

    @property
    def cwnd(self) -> float:
        """Congestion window, packets: the initial window until the first RTT sample."""
        if self._min_rtt_ns == 0:
            return INITIAL_CWND
        packets = self.rate_bps * self._min_rtt_ns / (self._packet_bits * NANOSECONDS)
        return max(float(math.ceil(round(packets, 6))), MIN_CWND)

    @property
    def pacing_rate(self) -> float:
        """Always 0: the window alone limits, and ACKs clock the sender."""
        return 0.0

    def on_ack(self, ack: Ack, *, now: int) -> None:
        """Take the RTT sample."""
        self._min_rtt_ns = min(self._min_rtt_ns or ack.rtt_ns, ack.rtt_ns)

    def on_timeout(self, *, now: int, sent: int) -> None:
        """Do nothing: the link is known."""

    def on_interval(self, stats: IntervalStats, *, now: int) -> None:
        """Do nothing: the oracle acts on each acknowledgement."""
