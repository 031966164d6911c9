"""Queues that drop before they are full: CoDel (RFC 8289) and PIE (RFC 8033).

Times are integers in the link's unit. mahimahi's two come from early drafts and drop other packets.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from distrlcc.sim.queue import Limited, Packet
from distrlcc.types import PACKET_BYTES


class CoDel(Limited):
    """Drops from the head once packets have waited above a target for an interval (RFC 8289)."""

    def __init__(
        self,
        target: int,
        interval: int,
        packets: int | None = None,
        bytes_: int | None = None,
        on_drop: Callable[[int, Packet], None] | None = None,
    ) -> None:
        """Start empty.

        Args:
            target: Waiting time that is acceptable for good.
            interval: How long it may be exceeded before the first drop.
            packets: Limit; an arrival above it is dropped as by a droptail.
            bytes_: Limit likewise.
            on_drop: Told the time and the packet of every drop in `pop`.
        """
        super().__init__(packets, bytes_)
        self._target, self._interval = target, interval
        self._on_drop = on_drop
        self._first_above: int | None = None
        self._dropping = False
        self._drop_next = 0
        self._count = self._last_count = 0

    def push(self, packet: Packet) -> list[Packet]:
        """Take an arrival, or drop it when the limit is reached."""
        if not self._fits(len(self) + 1, self._bytes + packet.size):
            return [packet]
        self._add(packet)
        return []

    def pop(self, *, now: int) -> Packet | None:
        """Give the next packet that is not dropped, or None (section 5.6)."""
        packet, may_drop = self._judge(now)
        if self._dropping:
            self._dropping = may_drop
            while self._dropping and now >= self._drop_next:
                self._drop(now, packet)
                self._count += 1
                packet, self._dropping = self._judge(now)
                if self._dropping:
                    self._drop_next = self._control_law(self._drop_next)
        elif may_drop:
            self._drop(now, packet)
            packet, _ = self._judge(now)
            self._dropping = True
            # A queue that was over the target a moment ago goes on at the rate it had reached.
            delta = self._count - self._last_count
            recently = now - self._drop_next < 16 * self._interval
            self._count = self._last_count = delta if delta > 1 and recently else 1
            self._drop_next = self._control_law(now)
        return packet

    def _judge(self, now: int) -> tuple[Packet | None, bool]:
        """Take the oldest packet; tell whether it may be dropped (section 5.5)."""
        packet = self._take()
        below = packet is None or now - packet.arrival < self._target
        if below or self._bytes <= PACKET_BYTES:
            self._first_above = None
        elif self._first_above is None:
            self._first_above = now + self._interval
        else:
            return packet, now >= self._first_above
        return packet, False

    def _drop(self, now: int, packet: Packet | None) -> None:
        if self._on_drop is not None and packet is not None:
            self._on_drop(now, packet)

    def _control_law(self, time: int) -> int:
        return time + int(self._interval / math.sqrt(self._count))


class PIE(Limited):
    """Drops arrivals with a probability that follows the waiting time (RFC 8033, appendix A).

    The waiting time is the oldest packet's age, which the RFC allows in place of an estimated rate.
    """

    def __init__(
        self,
        reference: int,
        max_burst: int,
        update: int,
        second: int,
        generator: random.Random,
        packets: int | None = None,
        bytes_: int | None = None,
    ) -> None:
        """Start empty at time zero.

        Args:
            reference: Waiting time to keep to.
            max_burst: How long after quiet nothing is dropped.
            update: Time from one update of the probability to the next.
            second: One second in the link's unit, since the RFC's gains are per second.
            generator: Draws the lottery.
            packets: Limit; an arrival above it is dropped as by a droptail.
            bytes_: Limit likewise.
        """
        super().__init__(packets, bytes_)
        self._reference, self._max_burst, self._update = reference, max_burst, update
        self._second, self._generator = second, generator
        self._burst = max_burst
        self._updated: int | None = None
        self._delay = self._old_delay = 0
        self.probability = 0.0
        """Of an arrival's drop, now."""

    def push(self, packet: Packet) -> list[Packet]:
        """Take an arrival, or drop it by lottery or limit."""
        self._catch_up(packet.arrival)
        if not self._fits(len(self) + 1, self._bytes + packet.size) or self._drops_early():
            return [packet]
        self._add(packet)
        return []

    def pop(self, *, now: int) -> Packet | None:
        """Give the oldest packet, or None."""
        self._catch_up(now)
        return self._take()

    def _drops_early(self) -> bool:
        calm = self._old_delay < self._reference / 2 and self.probability < 0.2
        if self._burst > 0 or calm or self._bytes <= 2 * PACKET_BYTES:
            return False
        return self._generator.random() < self.probability

    def _catch_up(self, now: int) -> None:
        """Make the updates that a timer would have made; the queue was as it is since the last."""
        if self._updated is None:
            self._updated = now
        while now - self._updated >= self._update:
            self._updated += self._update
            self._calculate(self._updated)

    def _calculate(self, now: int) -> None:
        self._delay = max(now - self._packets[0].arrival, 0) if self._packets else 0
        change = 0.125 * (self._delay - self._reference) / self._second
        change += 1.25 * (self._delay - self._old_delay) / self._second
        for below, divisor in ((1e-6, 2048), (1e-5, 512), (1e-4, 128), (1e-3, 32), (1e-2, 8)):
            if self.probability < below:
                change /= divisor
                break
        else:
            change /= 2 if self.probability < 0.1 else 1
        if self._delay == 0 and self._old_delay == 0:
            self.probability *= 0.98
        self.probability = min(max(self.probability + change, 0.0), 1.0)
        self._burst = max(self._burst - self._update, 0)
        half = self._reference / 2
        if self.probability == 0.0 and self._delay < half and self._old_delay < half:
            self._burst = self._max_burst
        self._old_delay = self._delay
