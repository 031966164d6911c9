"""Congestion control for aioquic: ``QuicConfiguration(congestion_control_algorithm="distrlcc")``.

Importing this registers ``distrlcc``, the policy that `send` takes by default. `register` gives any
other policy or scheme a name of its own. aioquic finds losses and encrypts. Ours sets the window,
and aioquic's pacer spreads one over each RTT. A policy acts with the first acknowledgement after
each of its steps. Needs aioquic (the extra ``quic``).
"""

import time
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

from distrlcc.control.base import Controller
from distrlcc.control.schemes import SchemeController
from distrlcc.evaluation.contender import contender_named
from distrlcc.extras import naming_extras
from distrlcc.policy.spec import DEFAULT
from distrlcc.transport.recovery import DeliveryRate, Interval, RttEstimator, Stamp
from distrlcc.types import Ack

with naming_extras():
    from aioquic.quic.congestion.base import QuicCongestionControl, register_congestion_control
    from aioquic.quic.packet_builder import QuicSentPacket

STEP_NS = 10_000_000  # a scheme's step, which only counts
StepLength = Callable[[float], int]


class Adapter(QuicCongestionControl):
    """One of our controllers as aioquic's congestion control; counts are packets, times ns."""

    def __init__(
        self, controller: Controller, step_ns: StepLength, *, max_datagram_size: int
    ) -> None:
        super().__init__(max_datagram_size=max_datagram_size)
        now = self._due = time.monotonic_ns()
        self._controller, self._step_ns, self._size = controller, step_ns, max_datagram_size
        self._rtt, self._rate = RttEstimator(), DeliveryRate(True, now=now)
        self._interval = Interval(max_datagram_size, now=now)
        self._flying: dict[int, tuple[int, Stamp]] = {}  # by the packet's id
        self._sent = self._lost = self._largest_lost = 0
        self._set_window()

    def on_packet_sent(self, *, packet: QuicSentPacket) -> None:
        """Remember when it was sent."""
        assert packet.sent_time is not None
        stamp = self._rate.stamp(len(self._flying), now=int(packet.sent_time * 1e9))
        self._flying[id(packet)] = self._sent, stamp
        self._sent += 1
        self._interval.sent += 1
        self.bytes_in_flight += packet.sent_bytes

    def on_packet_acked(self, *, now: float, packet: QuicSentPacket) -> None:
        """Tell the controller."""
        number, stamp = self._take(packet)
        time_ns, rate, rtt = int(now * 1e9), self._rate, self._rtt
        # Tell the controller what this packet showed, and of losses before it.
        elapsed = rate.deliver(stamp, now=time_ns) or 1
        sample = rtt.sample(time_ns - stamp[0])
        rtt.smooth(sample)
        delivered = rate.delivered - stamp[1]
        self._interval.on_ack(sample, rtt.minimum, delivered, elapsed, self._sent - number)
        lost, self._lost = self._lost, 0
        number = self._largest_lost + 1 if lost else number
        inflight, speed = len(self._flying), delivered * 1e9 / elapsed
        ack = Ack(sample, number, self._sent, lost, inflight, rate.delivered, stamp[1], speed)
        self._controller.on_ack(ack, now=time_ns)
        # End the step when it is over.
        if time_ns >= self._due:
            stats = self._interval.take(rtt, self._controller, inflight, now=time_ns)
            self._controller.on_interval(stats, now=time_ns)
            self._due = time_ns + self._step_ns(rtt.minimum * 1e-9)
        self._set_window()

    def on_packets_lost(self, *, now: float, packets: Iterable[QuicSentPacket]) -> None:
        """Count them; the controller learns of them with the next acknowledgement."""
        for packet in packets:
            number, _ = self._take(packet)
            self._lost += 1
            self._interval.lost += 1
            self._largest_lost = max(self._largest_lost, number)

    def on_packets_expired(self, *, packets: Iterable[QuicSentPacket]) -> None:
        """Forget them."""
        for packet in packets:
            self._take(packet)

    def on_persistent_congestion(self) -> None:
        """Tell the controller of a timeout."""
        self._interval.timeouts += 1
        self._controller.on_timeout(now=time.monotonic_ns(), sent=self._sent)
        self._set_window()

    def on_rtt_measurement(self, *, now: float, rtt: float) -> None:
        """Do nothing: each packet's own RTT is taken."""

    def _take(self, packet: QuicSentPacket) -> tuple[int, Stamp]:
        self.bytes_in_flight -= packet.sent_bytes
        return self._flying.pop(id(packet))

    def _set_window(self) -> None:
        window, pacing = self._controller.cwnd, self._controller.pacing_rate
        if pacing and self._rtt.smoothed:
            window = min(window, pacing * self._rtt.smoothed * 1e-9)
        self.congestion_window = max(int(window), 2) * self._size


def register(
    sender: str | Path | Callable[[], Controller] = DEFAULT, name: str = "distrlcc"
) -> None:
    """Have aioquic know a policy or scheme under a name; each connection has a controller anew.

    The sender is a scheme's name, a policy's file, a run's folder or a shipped policy's name, which
    is read now. It may be a function that makes a controller. ``congestion_control_algorithm`` says
    the name. Raises DistrlccError: there is no such sender.
    """
    make = sender if callable(sender) else _maker(str(sender))

    def adapter(*, max_datagram_size: int) -> Adapter:
        controller = make()
        step_ns = getattr(controller, "step_ns", lambda _: STEP_NS)
        return Adapter(controller, step_ns, max_datagram_size=max_datagram_size)

    register_congestion_control(name, adapter)


def _maker(sender: str) -> Callable[[], Controller]:
    contender = contender_named(sender)
    if contender.learned:
        return contender.controller
    SchemeController(contender.scheme)  # raises ConfigError at what only the simulator has
    return lambda: SchemeController(contender.scheme, now=time.monotonic_ns())


_default = cache(lambda: _maker(DEFAULT))
register(lambda: _default()())  # read at the first connection
