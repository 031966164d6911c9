"""The sender: which packet may leave when, what an ACK or silence means, what a step showed.

Sans-IO: it owns packet numbers, not bytes. The owner asks for a number whenever it has something
to send, puts its bytes under that number, and passes in what comes back::

    sender = Sender(controller, now=now)
    while (number := sender.packet_to_send(now=now)) is not None:
        ...                                  # send DATA under this number, and this number once
    sleep_until(sender.next_time())          # or until an ACK arrives
    acked, lost = sender.on_ack(ack.ranges, now=now)
    lost = sender.on_timer(now=now)          # whenever timer_time() has come
    stats = sender.take_interval(now=now)    # each step

Times are ns of one clock that never runs backwards, from 0 on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from distrlcc.control.base import Controller
from distrlcc.transport.recovery import (
    GRANULARITY,
    NEVER,
    DeliveryRate,
    Interval,
    Outstanding,
    RttEstimator,
    Stamp,
    pacing_interval,
)
from distrlcc.types import NANOSECONDS, PACKET_BYTES, Ack, IntervalStats


@dataclass(frozen=True)
class SenderOptions:
    """How a sender finds losses, times out and counts; the defaults are for real networks."""

    packet_bytes: int = PACKET_BYTES
    """Size of a packet for the rates in `IntervalStats`, bytes."""
    packet_threshold: int = 3
    """A packet is lost when one sent this many later is acknowledged (RFC 9002 section 6.1.1)."""
    time_threshold: float = 9 / 8
    """... or when a later one is and this many RTTs passed (section 6.1.2); 0 is never."""
    idle_timer_ns: int = 0
    """Above 0: the timer fires after this long without a packet sent or acknowledged. 0: it fires
    after RFC 6298's timeout, doubled each time, while packets are in flight."""
    catch_up_ns: int = 2_000_000
    """A paced sender that wakes late makes up for this much, ns."""
    rate_over_sending: bool = True
    """Whether delivery rates also count the time that sending took (see `DeliveryRate`)."""


SIMULATOR_OPTIONS = SenderOptions(
    packet_threshold=1,
    time_threshold=0.0,
    idle_timer_ns=NANOSECONDS,
    catch_up_ns=0,
    rate_over_sending=False,
)
"""The simulator's semantics: nothing is reordered, a gap is lost, one second of silence probes."""


class Acked(NamedTuple):
    """The packet numbers that an ACK showed to be acknowledged and lost, lowest first."""

    acked: list[int]
    lost: list[int]


class Sender:
    """One flow under a congestion controller."""

    def __init__(
        self,
        controller: Controller,
        options: SenderOptions | None = None,
        *,
        now: int,
        step_start: int | None = None,
        on_rtt: Callable[[int], None] | None = None,
    ) -> None:
        """Start a flow, whose present step began at ``step_start``, if not now.

        ``on_rtt`` is called with each RTT sample, ns.
        """
        self._options = options = options or SenderOptions()
        self.controller = controller
        self.rtt = RttEstimator()
        self._on_rtt = on_rtt
        self._outstanding = Outstanding()
        self._rate = DeliveryRate(options.rate_over_sending, now=now)
        start = now if step_start is None else step_start
        self._interval = Interval(options.packet_bytes, now=start)
        self._largest_acked = -1
        self._activity = now
        self._timer_start = now
        self._probe_time = NEVER
        self._paced_time = now  # when pacing lets the next packet leave
        self._loss_time = NEVER  # when the time threshold finds the next packet lost
        self._unreported = 0  # lost packets that the controller does not know of yet
        self._largest_lost = -1

    @property
    def next_number(self) -> int:
        """Number of the next packet, which is how many were sent."""
        return self._outstanding.next_number

    @property
    def inflight(self) -> int:
        """Packets sent that are neither acknowledged nor known lost."""
        return self._outstanding.count

    @property
    def lowest(self) -> int:
        """Least number in flight, or the next one: what DATA tells the receiver."""
        return self._outstanding.lowest

    def packet_to_send(self, *, now: int) -> int | None:
        """Return the number of a packet to send now, which then counts as sent, or None.

        Fewer than ``floor(cwnd)`` packets are in flight before each; a paced one waits its turn. A
        timer's probe heeds neither.
        """
        outstanding = self._outstanding
        inflight = outstanding.count
        if self._probe_time != NEVER:
            self._probe_time = NEVER
        else:
            controller = self.controller
            if inflight >= int(controller.cwnd):
                return None
            rate = controller.pacing_rate
            if rate > 0.0:
                if now < self._paced_time:
                    return None
                self._paced_time = self._earliest(now) + pacing_interval(rate)
        if inflight == 0:
            self._timer_start = now
        self._activity = now
        self._interval.sent += 1
        return outstanding.add(self._rate.stamp(inflight, now=now))

    def send_time(self) -> int:
        """Return when the next packet may leave, ns; `NEVER` while the window is full.

        A time that has passed means at once.
        """
        if self._probe_time != NEVER:
            return self._probe_time
        controller = self.controller
        if self._outstanding.count >= int(controller.cwnd):
            return NEVER
        return self._paced_time if controller.pacing_rate > 0.0 else 0

    def timer_time(self) -> int:
        """Return when `on_timer` is due, ns; `NEVER` while nothing is awaited."""
        if self._probe_time != NEVER:
            return self._loss_time
        if self._options.idle_timer_ns:
            timeout = self._activity + self._options.idle_timer_ns
        elif self._outstanding.count or int(self.controller.cwnd) < 1:
            timeout = self._timer_start + self.rtt.rto
        else:
            timeout = NEVER
        return min(timeout, self._loss_time)

    def next_time(self) -> int:
        """Return when sending or the timer is due, whichever comes first, ns."""
        return min(self.send_time(), self.timer_time())

    def on_ack(self, ranges: Sequence[tuple[int, int]], *, now: int, marked: int = 0) -> Acked:
        """Receive an ACK; tell the controller of each newly acknowledged packet, lowest first.

        The ranges are those of `Acknowledgement`. Losses are told with the last packet, whose
        `Ack.seq` is then one above the largest lost number, so that they lie below it even if
        packets were reordered. So is the number of packets that had a mark (ECN), as in RFC 9002,
        appendix B.7.
        """
        if ranges[0][1] > self.next_number:
            return Acked([], [])  # of packets that were never sent
        # Take out what is newly acknowledged.
        taken: list[tuple[int, Stamp]] = []
        take = self._outstanding.take
        for start, stop in reversed(ranges):
            taken += take(start, stop)
        if not taken:
            return Acked([], [])
        # Measure the RTT by the newest, and restart the timer.
        rtt = self.rtt
        largest, stamp = taken[-1]
        newest = rtt.sample(now - stamp[0])
        if largest == ranges[0][1] - 1:
            rtt.smooth(newest)
        rtt.backoff = 0
        self._activity = self._timer_start = now
        self._probe_time = NEVER
        self._largest_acked = max(self._largest_acked, largest)
        # Find losses, and tell the controller.
        lost = self._find_lost(now)
        self._deliver(taken, marked, now)
        return Acked([number for number, _ in taken], lost)

    def _deliver(self, taken: list[tuple[int, Stamp]], marked: int, now: int) -> None:
        rate, rtt, interval = self._rate, self.rtt, self._interval
        sent = self.next_number
        on_ack = self.controller.on_ack
        inflight = self._outstanding.count + len(taken)
        last = taken[-1][0]
        for number, stamp in taken:
            elapsed = rate.deliver(stamp, now=now)
            prior, delivered = stamp[1], rate.delivered
            sample = rtt.sample(now - stamp[0])
            if self._on_rtt is not None:
                self._on_rtt(sample)
            interval.on_ack(sample, rtt.minimum, delivered - prior, elapsed, sent - number)
            inflight -= 1
            lost, seq = 0, number
            if number == last and self._unreported:
                lost, self._unreported = self._unreported, 0
                seq = self._largest_lost + 1
            speed = (delivered - prior) * float(NANOSECONDS) / (elapsed or 1)
            marks = marked if number == last else 0
            on_ack(Ack(sample, seq, sent, lost, inflight, delivered, prior, speed, marks), now=now)

    def on_timer(self, *, now: int) -> list[int]:
        """Do what is due at `timer_time`; return newly lost packets.

        A timeout finds no packet lost: the ACK of the probe will.
        """
        lost = self._find_lost(now) if self._loss_time <= now else []
        if self.timer_time() <= now:
            self._interval.timeouts += 1
            self.rtt.backoff += 1
            self._timer_start = self._activity = now
            self._probe_time = now
            self.controller.on_timeout(now=now, sent=self.next_number)
        return lost

    def on_action(self, *, now: int) -> None:
        """Follow a window or rate that was set from outside, as a policy does each step."""
        rate = self.controller.pacing_rate
        if rate > 0.0:  # no later than one interval from now
            self._paced_time = min(self._earliest(now), now + pacing_interval(rate))

    def take_interval(self, *, now: int) -> IntervalStats:
        """Return what was seen since the last call, arrays of one element, and start anew.

        The controller's `on_interval` is the owner's to call, since one policy may serve many
        senders at once; then `on_action`.
        """
        return self._interval.take(self.rtt, self.controller, self._outstanding.count, now=now)

    def _earliest(self, now: int) -> int:
        """Return when a paced packet may leave: what was missed long ago is not caught up."""
        return max(self._paced_time, now - self._options.catch_up_ns)

    def _find_lost(self, now: int) -> list[int]:
        """Take the lost packets out (RFC 9002 section 6.1); return their numbers, lowest first."""
        outstanding, options, rtt = self._outstanding, self._options, self.rtt
        largest, self._loss_time = self._largest_acked, NEVER
        if outstanding.lowest >= largest:
            return []
        lost, patience = [], NEVER
        if options.time_threshold:
            patience = max(int(options.time_threshold * max(rtt.smoothed, rtt.latest)), GRANULARITY)
        for number, sent in outstanding.below(largest):
            if number <= largest - options.packet_threshold or now - sent >= patience:
                lost.append(number)
            else:
                self._loss_time = min(self._loss_time, sent + patience)
        for number in lost:
            outstanding.take(number, number + 1)
        if lost:
            self._interval.lost += len(lost)
            self._unreported += len(lost)
            self._largest_lost = max(self._largest_lost, lost[-1])
        return lost
