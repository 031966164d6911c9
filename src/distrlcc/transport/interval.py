"""What a sender sees in one step, added up packet by packet into `IntervalStats`."""

from __future__ import annotations

import numpy as np

from distrlcc.types import NANOSECONDS, IntervalStats

_LEAST = 1_000_000


class Interval:
    """The counts and averages of the present step; the definitions are the simulator kernel's."""

    __slots__ = (
        "_acked",
        "_delay",
        "_delivery_rate",
        "_megabits",
        "_rtt_max",
        "_rtt_min",
        "_rtt_sum",
        "_send_rate",
        "_start",
        "lost",
        "sent",
        "timeouts",
    )

    def __init__(self, packet_bytes: int, *, now: int) -> None:
        """Start a step.

        Args:
            packet_bytes: Size of a packet for the rates in Mbit/s.
            now: Time, ns.
        """
        self._megabits = packet_bytes * 8 * 1e-6
        self._restart(now)

    def _restart(self, now: int) -> None:
        self._start = now
        self.sent = self.lost = self.timeouts = 0
        self._acked = self._rtt_sum = self._rtt_min = self._rtt_max = 0
        self._delay = self._delivery_rate = self._send_rate = 0.0

    def on_ack(
        self, rtt: int, min_rtt: int, delivered: int, interval: int, sent_since: int
    ) -> None:
        """Add one acknowledged packet.

        Args:
            rtt: Its RTT, ns.
            min_rtt: Least RTT so far, this one counted, ns.
            delivered: Packets delivered over its flight (its delivery-rate sample).
            interval: The time that took, ns.
            sent_since: Packets sent since it left, itself counted: Vegas' sending rate.
        """
        self._rtt_sum += rtt
        delay = (rtt - min_rtt) * 1e-6
        # No rate is taken over less than a millisecond.
        megabits = self._megabits
        delivery_rate = delivered * megabits / (interval * 1e-9 if interval > _LEAST else 1e-3)
        send_rate = sent_since * megabits / (rtt * 1e-9 if rtt > _LEAST else 1e-3)
        if self._acked == 0:
            self._rtt_min = self._rtt_max = rtt
            self._delay, self._delivery_rate, self._send_rate = delay, delivery_rate, send_rate
        else:
            if rtt < self._rtt_min:
                self._rtt_min = rtt
            elif rtt > self._rtt_max:
                self._rtt_max = rtt
            self._delay += 0.125 * (delay - self._delay)
            self._delivery_rate += 0.125 * (delivery_rate - self._delivery_rate)
            self._send_rate += 0.125 * (send_rate - self._send_rate)
        self._acked += 1

    def take(
        self,
        rtt_last: int,
        min_rtt: int,
        cwnd: float,
        pacing_rate: float,
        inflight: int,
        *,
        now: int,
    ) -> IntervalStats:
        """Return the step's statistics, arrays of one element, and start the next step."""
        seconds = float(NANOSECONDS)
        values = np.array([
            (now - self._start) / seconds,
            self.sent,
            self._acked,
            self.lost,
            self.timeouts,
            self._rtt_sum / seconds,
            self._rtt_min / seconds,
            self._rtt_max / seconds,
            rtt_last / seconds,
            min_rtt / seconds,
            cwnd,
            pacing_rate,
            inflight,
            self._delay,
            self._delivery_rate,
            self._send_rate,
        ])  # fmt: skip
        self._restart(now)
        return IntervalStats(*values.reshape(-1, 1))
