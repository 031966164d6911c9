"""A sender's record of its packets: RTT, outstanding ones, delivery rate, a step's statistics.

Sources: RFC 6298 (smoothed RTT and timeout), RFC 9002 section 5.3 (ACK delay), RFC 8985 (lost
packets). Rates as BBR uses them follow `draft-cheng-iccrg-delivery-rate-estimation-02`. Its
app-limited mark is left out, as no controller here takes it. So is its discarding of intervals
below the least RTT: a packet's own flight is never longer than its sample's interval. Times are ns.
"""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator

import numpy as np

from distrlcc.control.base import Controller
from distrlcc.types import NANOSECONDS, IntervalStats

NEVER = 1 << 62  # a time that does not come, ns
GRANULARITY = 1_000_000  # clock granularity, ns (RFC 9002 section 6.1.2); scheduling is no finer
INITIAL_RTO = NANOSECONDS  # timeout before the first sample, ns (RFC 6298 rule 2.1)
MIN_RTO, MAX_RTO = 200_000_000, 60 * NANOSECONDS
"""Least time of a timeout beyond the smoothed RTT, as in Linux (RFC 6298 has 1 s), and the greatest
timeout after backing off (rule 2.5), ns."""
MOST_DOUBLINGS = 10  # after so many every timeout has reached `MAX_RTO`
REMEMBERED = 2 * NANOSECONDS
"""A packet that was found lost and comes later than this after it is a stranger's, ns."""
LATE_FOR = 10 * NANOSECONDS  # the greatest lateness is of one to two windows of this length, ns
NEVER_LATE = -1  # the lateness of a window in which no packet was late

Stamp = tuple[int, int, int, int]
"""A packet's send time, and the counts (delivered) and times (delivered, first sent) of then."""


class RttEstimator:
    """Smoothed RTT, variation and timeout, ns, in whole eighths and quarters as Linux has them."""

    __slots__ = ("_eighths", "_quarters", "backoff", "latest", "minimum")

    def __init__(self, first: int = 0) -> None:
        """Begin with what the handshake took, ns; 0 where there was none."""
        self.latest = 0  # newest sample; 0 before the first
        self.minimum = 0  # least sample; 0 before the first
        self._eighths = self._quarters = 0
        self.backoff = 0  # timeouts since the last newly acknowledged packet, which each double it
        if first:
            self.smooth(first)

    @property
    def smoothed(self) -> float:
        """Smoothed RTT; 0 before the first sample."""
        return self._eighths / 8

    @property
    def variation(self) -> float:
        """Mean deviation from it."""
        return self._quarters / 4

    def sample(self, rtt: int) -> int:
        """Take one RTT into least and latest; return it."""
        if self.minimum == 0 or rtt < self.minimum:
            self.minimum = rtt
        self.latest = rtt
        return rtt

    def smooth(self, rtt: int) -> None:
        """Take a sample into the smoothed values (RFC 6298 rules 2.2, 2.3)."""
        if self._eighths == 0:
            self._eighths, self._quarters = 8 * rtt, 2 * rtt
        else:
            error = rtt - (self._eighths >> 3)
            self._eighths += error
            self._quarters += abs(error) - (self._quarters >> 2)

    @property
    def timeout(self) -> int:
        """Timeout without back-off, ns (RFC 6298 rules 2.1 to 2.4)."""
        return (self._eighths >> 3) + max(self._quarters, MIN_RTO) if self._eighths else INITIAL_RTO

    @property
    def rto(self) -> int:
        """Timeout with its back-off, ns (rules 2.5 and 5.5)."""
        timeout = self.timeout
        return min(timeout << min(self.backoff, MOST_DOUBLINGS), max(timeout, MAX_RTO))


class Outstanding:
    """Stamps of outstanding packets, in the order of their numbers, which go up by one from 0."""

    __slots__ = ("_stamps", "next_number")

    def __init__(self) -> None:
        # Not a dict, whose first key is slow to find once many before it are gone.
        self._stamps = OrderedDict[int, Stamp]()
        self.next_number = 0  # number of the next packet, which is how many were sent

    @property
    def count(self) -> int:
        """Packets outstanding."""
        return len(self._stamps)

    @property
    def lowest(self) -> int:
        """Least outstanding number; the next one to be sent when none is."""
        return next(iter(self._stamps), self.next_number)

    def add(self, stamp: Stamp) -> int:
        """Remember the next packet; return its number."""
        number = self.next_number
        self._stamps[number] = stamp
        self.next_number = number + 1
        return number

    def take(self, start: int, stop: int) -> list[tuple[int, Stamp]]:
        """Take ``[start, stop)`` out; return what was outstanding of it, lowest first."""
        stamps = self._stamps
        numbers = [n for n in range(max(start, self.lowest), stop) if n in stamps]
        return [(number, stamps.pop(number)) for number in numbers]

    def below(self, number: int) -> Iterator[tuple[int, int]]:
        """Yield the outstanding packets below a number as (number, send time), lowest first."""
        for each, stamp in self._stamps.items():
            if each >= number:
                return
            yield each, stamp[0]


class FoundLost:
    """Packets that were found lost lately, with their stamps: some come after all."""

    __slots__ = ("_numbers", "_packets")

    def __init__(self) -> None:
        self._numbers: list[int] = []  # ascending: later finds lie above earlier ones
        self._packets: dict[int, tuple[int, Stamp]] = {}

    def add(self, number: int, stamp: Stamp, *, now: int) -> None:
        """Remember a packet that is found lost; forget those of long ago."""
        self.lowest(number, now=now)
        self._numbers.append(number)
        self._packets[number] = now, stamp

    def lowest(self, otherwise: int, *, now: int) -> int:
        """Forget packets of long ago; return the least number that is left, or another if less."""
        numbers, packets = self._numbers, self._packets
        if numbers and now - packets[numbers[0]][0] > REMEMBERED:
            young = (k for k, n in enumerate(numbers) if now - packets[n][0] <= REMEMBERED)
            old = next(young, len(numbers))
            for each in numbers[:old]:
                del packets[each]
            del numbers[:old]
        return min(numbers[0], otherwise) if numbers else otherwise

    def take(self, start: int, stop: int, *, now: int) -> list[tuple[int, Stamp]]:
        """Take ``[start, stop)`` out; return what is remembered of it, lowest first."""
        first, last = bisect_left(self._numbers, start), bisect_left(self._numbers, stop)
        if first == last:
            return []
        taken = [(number, *self._packets.pop(number)) for number in self._numbers[first:last]]
        del self._numbers[first:last]
        return [(number, stamp) for number, found, stamp in taken if now - found <= REMEMBERED]


class Reordering:
    """The lateness of overtaken packets: how long to wait for one (RFC 8985, RACK).

    Before any packet was overtaken, one is lost once a packet sent `packet_threshold` later is
    acknowledged, or after an RTT and a quarter of the least. Then time alone tells, until none was
    late for long: an RTT, the lateness seen, and a quarter more. RFC 8985 finds its window in steps
    of a quarter of the least RTT, one in each round that had a loss undone. Here each late packet
    shows how late it was.
    """

    __slots__ = ("_before", "_newest", "_rtt", "_since", "largest")

    def __init__(self) -> None:
        self.largest = -1  # largest acknowledged number
        self._rtt = self._since = 0  # RTT of the packet `largest`; when the newest window began
        self._newest = self._before = NEVER_LATE  # greatest lateness of that window, and before it

    @property
    def lateness(self) -> int:
        """Greatest lateness of late, ns; `NEVER_LATE` if nothing was."""
        return max(self._newest, self._before)

    def on_ack(self, number: int, rtt: int, *, now: int) -> None:
        """Take a newly acknowledged packet and its RTT, ns."""
        if now - self._since > LATE_FOR:
            self._before = self._newest if now - self._since <= 2 * LATE_FOR else NEVER_LATE
            self._newest, self._since = NEVER_LATE, now
        if number > self.largest:
            self.largest, self._rtt = number, rtt
        else:
            self._newest = max(self._newest, rtt - self._rtt, 0)

    def patience(self, rtt: RttEstimator) -> int:
        """Return how long after its sending a packet below `largest` is lost, ns."""
        late = self.lateness
        return self._rtt + min(max(late + (late >> 2), rtt.minimum >> 2, GRANULARITY), REMEMBERED)


class DeliveryRate:
    """A connection's delivered count, and the `Stamp` that each packet gets of it."""

    __slots__ = ("_over_sending", "delivered", "delivered_time", "first_sent_time")

    def __init__(self, over_sending: bool, *, now: int) -> None:
        """Start with nothing delivered.

        With ``over_sending`` a sample's interval is at least the time that sending its packets took
        (draft section 2.2). ACKs in a bunch then do not look like a fast link. The simulator's
        kernel takes the ACKs' spacing alone.
        """
        self._over_sending = over_sending
        self.delivered = 0
        self.delivered_time = self.first_sent_time = now

    def stamp(self, inflight: int, *, now: int) -> Stamp:
        """Return the stamp of a packet that is sent with others in flight (draft section 3.2)."""
        if inflight == 0 and self._over_sending:
            self.delivered_time = self.first_sent_time = now
        return now, self.delivered, self.delivered_time, self.first_sent_time

    def deliver(self, stamp: Stamp, *, now: int) -> int:
        """Count a packet; return the interval, ns, of its ``delivered - stamp[1]`` packets."""
        sent, _, delivered_time, first_sent = stamp
        self.delivered += 1
        self.delivered_time = now
        interval = now - delivered_time
        if self._over_sending:
            self.first_sent_time = max(sent, self.first_sent_time)  # a late one is no newer
            if sent - first_sent > interval:
                return sent - first_sent
        return interval


def pacing_interval(rate: float) -> int:
    """Return the time between two packets at a rate in packets/s, ns."""
    return int(min(NANOSECONDS / rate, 1e18))


class Interval:
    """The counts and averages of the present step; the definitions are the simulator kernel's."""

    def __init__(self, packet_bytes: int, *, now: int) -> None:
        self._megabits = packet_bytes * 8 * 1e-6
        self._restart(now)

    def _restart(self, now: int) -> None:
        self._start = now
        self.sent = self.lost = self.timeouts = self.spurious = 0
        self._acked = self._rtt_sum = self._rtt_min = self._rtt_max = 0
        self._delay = self._delivery_rate = self._send_rate = 0.0

    def on_ack(
        self, rtt: int, min_rtt: int, delivered: int, interval: int, sent_since: int
    ) -> None:
        """Add a packet's RTTs, ns, its delivery-rate sample, and those sent since it was."""
        self._rtt_sum += rtt
        delay, megabits = (rtt - min_rtt) * 1e-6, self._megabits
        # No rate is taken over less than a millisecond.
        delivery_rate = delivered * megabits / max(interval * 1e-9, 1e-3)
        send_rate = sent_since * megabits / max(rtt * 1e-9, 1e-3)
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
        self, rtt: RttEstimator, controller: Controller, inflight: int, *, now: int
    ) -> IntervalStats:
        """Return the step's statistics, arrays of one element, and start the next step."""
        seconds = float(NANOSECONDS)
        columns = (
            *((now - self._start) / seconds, self.sent, self._acked, self.lost, self.timeouts),
            *(self._rtt_sum / seconds, self._rtt_min / seconds, self._rtt_max / seconds),
            *(rtt.latest / seconds, rtt.minimum / seconds),
            *(controller.cwnd, controller.pacing_rate, inflight),
            *(self._delay, self._delivery_rate, self._send_rate, self.spurious),
        )
        self._restart(now)
        return IntervalStats(*(np.array([value], float) for value in columns))
