"""Delivery-rate samples (draft-cheng-iccrg-delivery-rate-estimation-02), as BBR uses.

Left out: the draft's app-limited mark, which no controller here takes, and its discarding of
intervals below the least RTT: a packet's own flight is never longer than its sample's interval.
"""

from __future__ import annotations


class DeliveryRate:
    """A connection's delivered count, and what each packet remembers of it.

    A packet's stamp is (send time, delivered, delivered time, first sent time), ns and packets.
    """

    __slots__ = ("_over_sending", "delivered", "delivered_time", "first_sent_time")

    def __init__(self, over_sending: bool, *, now: int) -> None:
        """Start with nothing delivered.

        Args:
            over_sending: Whether a sample's interval is at least the time that sending its packets
                took (draft section 2.2), so that ACKs that arrive in a bunch do not look like a
                fast link. The simulator's kernel takes the ACKs' spacing alone.
            now: Time, ns.
        """
        self._over_sending = over_sending
        self.delivered = 0
        self.delivered_time = self.first_sent_time = now

    def stamp(self, inflight: int, *, now: int) -> tuple[int, int, int, int]:
        """Return the stamp of a packet that is sent with others in flight (draft section 3.2)."""
        if inflight == 0 and self._over_sending:
            self.delivered_time = self.first_sent_time = now
        return now, self.delivered, self.delivered_time, self.first_sent_time

    def deliver(self, stamp: tuple[int, int, int, int], *, now: int) -> int:
        """Count a packet delivered; return its sample's interval, ns (draft section 3.3).

        The sample is ``delivered - stamp[1]`` packets over that interval.
        """
        sent, _, delivered_time, first_sent = stamp
        self.delivered += 1
        self.delivered_time = now
        interval = now - delivered_time
        if self._over_sending:
            self.first_sent_time = sent
            if sent - first_sent > interval:
                return sent - first_sent
        return interval
