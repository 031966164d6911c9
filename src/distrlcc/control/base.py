"""What every congestion controller offers to the sender that it steers."""

from __future__ import annotations

from typing import Protocol

from distrlcc.types import Ack, IntervalStats


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
        """Take one acknowledgement.

        Args:
            ack: The acknowledged packet and what it showed to be lost.
            now: Time, ns.
        """

    def on_timeout(self, *, now: int, sent: int) -> None:
        """Learn that the timer fired; a probe packet follows.

        In the simulator nothing was sent or acknowledged for one second; on real links nothing was
        acknowledged for RFC 6298's timeout.

        Args:
            now: Time, ns.
            sent: Packets sent so far, without the probe.
        """

    def on_interval(self, stats: IntervalStats, *, now: int) -> None:
        """Take one step's statistics.

        Args:
            stats: What this sender saw in the step, arrays of one element.
            now: Time at the step's end, ns.
        """
