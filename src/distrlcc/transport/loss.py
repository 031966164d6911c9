"""Which packets are lost: packet threshold and time threshold (RFC 9002 section 6.1)."""

from __future__ import annotations

from distrlcc.transport.outstanding import Outstanding
from distrlcc.transport.rtt import GRANULARITY, RttEstimator

NEVER = 1 << 62
"""A time that does not come, ns."""


class LossDetector:
    """Finds outstanding packets lost once later ones are acknowledged."""

    __slots__ = ("_packets", "_times", "loss_time")

    def __init__(self, packet_threshold: int, time_threshold: float) -> None:
        """Take the thresholds.

        Args:
            packet_threshold: A packet is lost when one sent this many later is acknowledged.
            time_threshold: A packet is lost when a later one is acknowledged and this many RTTs
                passed since it was sent; 0 is never.
        """
        self._packets, self._times = packet_threshold, time_threshold
        self.loss_time = NEVER
        """When the time threshold finds the next packet lost, ns; `NEVER` without a candidate."""

    def find(
        self, outstanding: Outstanding, largest_acked: int, rtt: RttEstimator, *, now: int
    ) -> list[int]:
        """Take the lost packets out of ``outstanding``; return their numbers, lowest first."""
        self.loss_time = NEVER
        if outstanding.lowest >= largest_acked:
            return []
        lost = []
        by_number = largest_acked - self._packets
        patience = NEVER
        if self._times:
            longest = max(rtt.smoothed, rtt.latest)
            patience = max(int(self._times * longest), GRANULARITY)
        for number, sent in outstanding.below(largest_acked):
            if number <= by_number or now - sent >= patience:
                lost.append(number)
            else:
                self.loss_time = min(self.loss_time, sent + patience)
        for number in lost:
            outstanding.take(number, number + 1)
        return lost
