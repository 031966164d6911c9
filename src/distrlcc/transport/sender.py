"""The sender: when packets leave, what an ACK or silence means, and a step's statistics.

Sans-IO: it owns packet numbers, not bytes. The owner asks for a number whenever it has something
to send, puts its bytes under that number, and passes in the answers. For instance::

    sender = Sender(controller, now=now)
    while (number := sender.packet_to_send(now=now)) is not None:
        ...                                  # send DATA under this number, and this number once
    sleep_until(sender.next_time())          # or until an ACK arrives
    acked, lost, spurious = sender.on_ack(ack.ranges, now=now)
    lost = sender.on_timer(now=now)          # whenever timer_time() has come
    stats = sender.take_interval(now=now)    # each step

Times are ns of one clock that never runs backwards, from 0 on.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from distrlcc.control.base import Controller
from distrlcc.transport import recovery
from distrlcc.transport.recovery import NEVER, Stamp
from distrlcc.types import NANOSECONDS, PACKET_BYTES, Ack, IntervalStats


@dataclass(frozen=True)
class SenderOptions:
    """How a sender finds losses, times out and counts; the defaults are for real networks."""

    packet_bytes: int = PACKET_BYTES  # size of a packet for the rates in `IntervalStats`, bytes
    packet_threshold: int = 3
    """A packet is lost when one sent this many later is acknowledged, until packets were seen to
    be reordered (RFC 8985 section 6.2)."""
    catch_up_ns: int = 2_000_000  # a paced sender that wakes late makes up for this much, ns
    rate_over_sending: bool = True  # delivery rates also count the time of sending: `DeliveryRate`


REORDERED_OPTIONS = SenderOptions(catch_up_ns=0, rate_over_sending=False)
"""The simulator's, on links that reorder packets."""
SIMULATOR_OPTIONS = replace(REORDERED_OPTIONS, packet_threshold=1)  # on its others: a gap is lost


class Acked(NamedTuple):
    """An ACK's news: packet numbers, lowest first."""

    acked: list[int]  # newly acknowledged
    lost: list[int]  # newly found lost
    spurious: list[int]  # those of ``acked`` that had been found lost before


class Sender:
    """One flow under a congestion controller."""

    def __init__(
        self,
        controller: Controller,
        options: SenderOptions | None = None,
        *,
        now: int,
        step_start: int | None = None,
        first_rtt: int = 0,
        on_rtt: Callable[[int], None] | None = None,
    ) -> None:
        """Start a flow, whose step began at ``step_start``; ``on_rtt`` takes RTT samples, ns."""
        self._options = options = options or SenderOptions()
        self.controller = controller
        self.rtt = recovery.RttEstimator(first_rtt)
        self._on_rtt = on_rtt
        self._outstanding, self._found_lost = recovery.Outstanding(), recovery.FoundLost()
        self._reordering = recovery.Reordering()
        self._rate = recovery.DeliveryRate(options.rate_over_sending, now=now)
        start = now if step_start is None else step_start
        self._interval = recovery.Interval(options.packet_bytes, now=start)
        self._timer_start = now
        self._probe_time = NEVER
        self._probe_number = 0  # next number at the first of the timeouts in a row
        self._paced_time = now  # when pacing lets the next packet leave
        self._loss_time = NEVER  # when the next packet is lost unless it is acknowledged
        self._unreported = 0  # lost packets that the controller does not know of yet
        self._largest_lost = self._largest_told = -1
        # The newest recovery: its losses have these numbers, and so many of them may be true.
        self._recovery_from = self._recovery_until = self._recovery_lost = 0
        self._begins_recovery = False  # and the controller does not know of it yet

    @property
    def next_number(self) -> int:
        """Number of the next packet, which is how many were sent."""
        return self._outstanding.next_number

    @property
    def inflight(self) -> int:
        """Packets sent that are neither acknowledged nor known lost."""
        return self._outstanding.count

    def lowest(self, *, now: int) -> int:
        """Return the least number whose ACK would be taken: in flight, lost lately, or next."""
        return self._found_lost.lowest(self._outstanding.lowest, now=now)

    def packet_to_send(self, *, now: int) -> int | None:
        """Return the number of a packet to send now, which then counts as sent, or None.

        In flight are fewer than ``floor(cwnd)``, but for a probe; a paced one waits its turn.
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
                self._paced_time = self._earliest(now) + recovery.pacing_interval(rate)
        if inflight == 0:
            self._timer_start = now
        self._interval.sent += 1
        return outstanding.add(self._rate.stamp(inflight, now=now))

    def send_time(self) -> int:
        """Return when a packet may leave, ns; the past: at once; `NEVER`: the window is full."""
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
        if self._outstanding.count or int(self.controller.cwnd) < 1:
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
            return Acked([], [], [])  # of packets that were never sent
        # Take out what is newly acknowledged, and what was found lost and came after all.
        taken: list[tuple[int, Stamp]] = []
        late: list[tuple[int, Stamp]] = []
        for start, stop in reversed(ranges):
            taken += self._outstanding.take(start, stop)
            late += self._found_lost.take(start, stop, now=now)
        spurious = [number for number, _ in late]
        if late:
            taken = sorted(taken + late)
        if not taken:
            return Acked([], [], [])
        # Measure the RTT by the newest, and restart the timer.
        rtt, reordering = self.rtt, self._reordering
        largest, stamp = taken[-1]
        newest = rtt.sample(now - stamp[0])
        before = reordering.largest
        if largest > before:
            rtt.smooth(newest)
            reordering.on_ack(largest, newest, now=now)
        for number, stamp in taken:
            if number >= before:
                break
            reordering.on_ack(number, now - stamp[0], now=now)
        timed_out, undone = rtt.backoff > 0, self._is_undone(taken[0][0], spurious)
        rtt.backoff = 0
        self._timer_start = now
        self._probe_time = NEVER
        # Find losses, and tell the controller. What the probe's own ACK names may have come before
        # it, in an ACK that was lost: a timeout with losses is none of the spurious ones then.
        lost = self._find_lost(now)
        if timed_out and lost and largest >= self._probe_number:
            undone = False
        self._deliver(taken, spurious, undone, marked, now)
        return Acked([number for number, _ in taken], lost, spurious)

    def _is_undone(self, lowest: int, spurious: Sequence[int]) -> bool:
        """Tell whether an ACK shows that the controller last reacted to no loss.

        A timeout was spurious if a packet sent before it comes first (Eifel, RFC 3522; no number
        is sent twice). A recovery was spurious if each of its losses came after all.
        """
        self._interval.spurious += len(spurious)
        self._unreported -= sum(number > self._largest_told for number in spurious)
        if self.rtt.backoff:
            return lowest < self._probe_number
        of_it = sum(number >= self._recovery_from for number in spurious)
        self._recovery_lost -= of_it
        if not of_it or self._recovery_lost:
            return False
        # It never was: the next loss of its packets begins another. Does the controller know of it?
        self._recovery_until = self._recovery_from
        known, self._begins_recovery = not self._begins_recovery, False
        return known

    def _deliver(
        self,
        taken: list[tuple[int, Stamp]],
        spurious: Sequence[int],
        undone: bool,
        marked: int,
        now: int,
    ) -> None:
        rate, rtt, interval = self._rate, self.rtt, self._interval
        sent = self.next_number
        on_ack = self.controller.on_ack
        inflight, late = self._outstanding.count + len(taken) - len(spurious), set(spurious)
        last = taken[-1][0]
        for number, stamp in taken:
            elapsed = rate.deliver(stamp, now=now)
            prior, delivered = stamp[1], rate.delivered
            sample = rtt.sample(now - stamp[0])
            if self._on_rtt is not None:
                self._on_rtt(sample)
            interval.on_ack(sample, rtt.minimum, delivered - prior, elapsed, sent - number)
            if number not in late:
                inflight -= 1
            lost, seq, begins = 0, number, False
            if number == last and self._unreported:
                lost, self._unreported = self._unreported, 0
                self._largest_told = self._largest_lost
                seq = self._largest_lost + 1
                begins, self._begins_recovery = self._begins_recovery, False
                if begins:
                    self._recovery_until = sent
            speed = (delivered - prior) * float(NANOSECONDS) / (elapsed or 1)
            marks = marked if number == last else 0
            counts = sample, seq, sent, lost, inflight, delivered, prior
            on_ack(Ack(*counts, speed, marks, undone, begins), now=now)
            undone = False

    def on_timer(self, *, now: int) -> list[int]:
        """Do what is due at `timer_time`; return newly lost packets, none after a timeout."""
        lost = self._find_lost(now) if self._loss_time <= now else []
        if self.timer_time() <= now:
            if self.rtt.backoff == 0:  # what was lost before it is over
                self._probe_number = self.next_number
                self._recovery_from = self._recovery_until = self.next_number
                self._recovery_lost, self._begins_recovery = 0, False
            self._interval.timeouts += 1
            self.rtt.backoff += 1
            self._timer_start = now
            self._probe_time = now
            self.controller.on_timeout(now=now, sent=self.next_number)
        return lost

    def on_action(self, *, now: int) -> None:
        """Follow a window or rate that was set from outside, as a policy does each step."""
        rate = self.controller.pacing_rate
        if rate > 0.0:  # no later than one interval from now
            self._paced_time = min(self._earliest(now), now + recovery.pacing_interval(rate))

    def take_interval(self, *, now: int) -> IntervalStats:
        """Return what was seen since the last call, arrays of one element, and start anew."""
        return self._interval.take(self.rtt, self.controller, self._outstanding.count, now=now)

    def _earliest(self, now: int) -> int:
        """Return when a paced packet may leave: what was missed long ago is not caught up."""
        return max(self._paced_time, now - self._options.catch_up_ns)

    def _find_lost(self, now: int) -> list[int]:
        """Take the lost packets out (RFC 8985 section 6.2); return their numbers, lowest first."""
        outstanding, reordering = self._outstanding, self._reordering
        largest, self._loss_time = reordering.largest, NEVER
        if outstanding.lowest >= largest:
            return []
        lost = list[int]()
        patience = reordering.patience(self.rtt)
        surely = largest - self._options.packet_threshold + 1
        least = surely if reordering.lateness == recovery.NEVER_LATE else 0
        for number, sent in outstanding.below(largest):
            if number >= least and now < sent + patience:
                self._loss_time = sent + patience
                break
            lost.append(number)
        for number in lost:
            ((_, stamp),) = outstanding.take(number, number + 1)
            self._found_lost.add(number, stamp, now=now)
        if not lost:
            return lost
        # Count losses, for the controller too: does one of a newer packet begin a recovery?
        self._interval.lost += len(lost)
        self._unreported += len(lost)
        self._largest_lost = lost[-1]
        if lost[-1] >= self._recovery_until:
            self._begins_recovery, self._recovery_lost = True, 0
            self._recovery_from, self._recovery_until = self._recovery_until, self.next_number
        self._recovery_lost += sum(number >= self._recovery_from for number in lost)
        return lost
