"""Round-trip time: smoothed RTT and retransmission timeout (RFC 6298), ACK delay (RFC 9002 5.3)."""

from __future__ import annotations

from distrlcc.types import NANOSECONDS

GRANULARITY = 1_000_000
"""Clock granularity, ns (RFC 9002 section 6.1.2); scheduling makes timers no finer."""
INITIAL_RTO = NANOSECONDS
"""Timeout before the first sample, ns (RFC 6298 rule 2.1)."""


class RttEstimator:
    """Smoothed RTT, its variation and the timeout with its back-off; all times are ns."""

    __slots__ = ("_maximum", "_minimum", "backoff", "latest", "minimum", "smoothed", "variation")

    def __init__(self, min_rto: int = NANOSECONDS, max_rto: int = 60 * NANOSECONDS) -> None:
        """Start without a sample.

        Args:
            min_rto: Least timeout, ns. RFC 6298 says 1 s; systems in use take 0.2 s.
            max_rto: Greatest timeout, backed off or not, ns.
        """
        self._minimum, self._maximum = min_rto, max_rto
        self.latest = 0
        """Newest sample; 0 before the first."""
        self.minimum = 0
        """Least sample; 0 before the first."""
        self.smoothed = 0.0
        self.variation = 0.0
        self.backoff = 0
        """Timeouts since the last newly acknowledged packet: each doubles the timeout."""

    def sample(self, rtt: int, ack_delay: int = 0) -> int:
        """Take one RTT into least and latest; return it without the receiver's delay.

        The delay is taken off only as long as the least RTT does not contradict it, so a receiver
        that lies cannot make the path look shorter than it ever was (RFC 9002 section 5.3).
        """
        if self.minimum == 0 or rtt < self.minimum:
            self.minimum = rtt
        elif ack_delay and rtt >= self.minimum + ack_delay:
            rtt -= ack_delay
        self.latest = rtt
        return rtt

    def smooth(self, rtt: int) -> None:
        """Take a sample into the smoothed values (RFC 6298 rules 2.2, 2.3)."""
        if self.smoothed == 0.0:
            self.smoothed, self.variation = float(rtt), rtt / 2
        else:
            self.variation += (abs(self.smoothed - rtt) - self.variation) / 4
            self.smoothed += (rtt - self.smoothed) / 8

    @property
    def rto(self) -> int:
        """Timeout with its back-off, ns (RFC 6298 rules 2.1 to 2.5 and 5.5)."""
        rto = INITIAL_RTO
        if self.smoothed:
            rto = int(self.smoothed + max(GRANULARITY, 4 * self.variation))
        return min(max(rto, self._minimum) << min(self.backoff, 32), self._maximum)
