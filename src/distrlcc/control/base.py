"""The seam between a sender and its controller, and the two simplest controllers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from distrlcc.control.state import INITIAL_CWND, MIN_CWND
from distrlcc.types import NANOSECONDS, PACKET_BYTES, Ack, IntervalStats


class Controller(Protocol):
    """Acknowledgements or interval statistics in, window and pacing rate out.

    A controller has no clock: the caller passes ``now``, which never decreases. The sender calls
    `on_ack` per ACK and `on_interval` per step; a controller that needs only one of them ignores
    the other. The sender reads the two properties before each packet.
    """

    @property
    def cwnd(self) -> float:
        """Congestion window, packets; fewer than ``floor(cwnd)`` are kept in flight."""

    @property
    def pacing_rate(self) -> float:
        """Pacing rate, packets/s; 0 means that the window alone limits."""

    def on_ack(self, ack: Ack, *, now: int) -> None:
        """Take one acknowledgement; ``now`` is the time, ns."""

    def on_timeout(self, *, now: int, sent: int) -> None:
        """Learn that the timer fired; a probe packet follows the ``sent`` ones.

        In the simulator nothing was sent or acknowledged for one second; on real links nothing was
        acknowledged for RFC 6298's timeout.
        """

    def on_interval(self, stats: IntervalStats, *, now: int) -> None:
        """Take one step's statistics, arrays of one element, at the step's end."""


@dataclass
class Held:
    """A controller whose window, packets, and rate, packets/s, are set from outside."""

    cwnd: float
    pacing_rate: float = 0.0

    def on_ack(self, ack: Ack, *, now: int) -> None:
        """Leave the window as it was set."""

    def on_timeout(self, *, now: int, sent: int) -> None:
        """Leave the window as it was set."""

    def on_interval(self, stats: IntervalStats, *, now: int) -> None:
        """Leave the window as it was set."""


class Oracle:
    """Keep ``rate * min RTT`` packets in flight: the full rate without a queue.

    The window is rounded up, as the sender counts whole packets and one too few leaves a gap. The
    least RTT is the flow's own, so the link must stand empty at least once; it does at the start.
    Set `rate_bps`, the link's rate in bit/s, again when it changes.
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
