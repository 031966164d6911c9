"""One flow over a real socket: `distrlcc.transport.sender` decides, this keeps its times."""

import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic_ns

from distrlcc.control.base import Controller
from distrlcc.errors import LinkError, WireError
from distrlcc.limits import limits
from distrlcc.net.flow_record import Sent, Step, Ticker, TimeRecord
from distrlcc.net.udp_socket import UdpSocket, shown
from distrlcc.transport import wire
from distrlcc.transport.handshake import Address, Opening, Repeat
from distrlcc.transport.sender import Sender, SenderOptions
from distrlcc.transport.wire import Acknowledgement, Hello, authentic
from distrlcc.types import NANOSECONDS

_MTU, _TUN_HEADER = 1500, 4
BATCH = 32  # datagrams that a flow sends before others have their turn; a buffer holds more
_SAFE_DATAGRAM = 1200  # what nearly every path carries (RFC 8899 section 5.1.2: BASE_PLPMTU), bytes
_ABORTS = 3  # copies of the FIN of a flow that failed: its acknowledgement is not awaited


@dataclass(frozen=True)
class Request:
    """The settings of a measured flow."""

    seconds: float = 10.0  # how long
    datagram: int = 0  # UDP payload of a packet, bytes; 0: what makes a packet of 1500 bytes
    timeout_s: float = 10.0  # limit of the handshake, of the end, and of silence meanwhile, s
    wait_s: float = 0.0  # how long to wait for a receiver that is not there yet, s


def header_bytes(remote: Address) -> int:
    """Return the IP and UDP headers of a packet to an address, bytes."""
    return 48 if ":" in remote[0] else 28


def send(
    remote: Address,
    controller: Controller,
    request: Request,
    *,
    step_ns: Callable[[float], int] = lambda _: 10_000_000,
    on_step: Callable[[Step], None] = lambda _: None,
    stopping: Callable[[], bool] = lambda: False,
    on_open: Callable[[], None] = lambda: None,
) -> Sent:
    """Send zeros to a receiver until the time is over.

    ``step_ns`` gives each step's length, ns, for the minimum RTT so far, s; ``stopping`` is asked
    at each step. ``on_open`` is called when the receiver has accepted; then the flow begins.
    """
    with UdpSocket(connect=remote) as socket:
        flow = _Flow(socket, _open(socket, remote, request, stopping), controller, request, remote)
        try:
            on_open()
            flow.run(step_ns, on_step, stopping)
        except BaseException:
            flow.abort()
            raise
        flow.finish(stopping)
        return flow.sent


def _open(
    socket: UdpSocket, remote: Address, request: Request, stopping: Callable[[], bool]
) -> Opening:
    size = request.datagram or _MTU - header_bytes(remote)
    hello = Hello(secrets.randbits(64), secrets.token_bytes(wire.NONCE_BYTES), size)
    place, now = shown(remote), monotonic_ns()
    try:
        opening = Opening(hello, _ns(request.timeout_s + request.wait_s), now=now)
    except WireError as error:
        raise LinkError(str(error)) from None
    patience = now + _ns(request.wait_s)
    while opening.waiting:
        # Send HELLO when it is due, and receive what comes back.
        datagram = opening.datagram_to_send(now=monotonic_ns())
        if datagram is not None:
            socket.refused = False
            socket.send([datagram])
        socket.wait(min(opening.next_time(), monotonic_ns() + _ns(limits().tick)))
        for answer, _ in socket.receive():
            opening.on_datagram(answer, now=monotonic_ns())
        # Give up where the user wants it, or where no receiver listens.
        if stopping():
            raise LinkError(f"stopped before {place} answered")
        if socket.refused and monotonic_ns() >= patience:
            raise LinkError(
                f"nothing listens at {place} (UDP); start there: distrlcc receive --listen {place}"
            )
    if opening.failure:
        raise LinkError(f"{place}: {opening.failure}")
    return opening


def _ns(seconds: float) -> int:
    return round(seconds * NANOSECONDS)


def next_batch(sender: Sender, session: int, padding: bytes, *, now: int) -> list[bytes]:
    """Return the DATA datagrams that may be sent now, `BATCH` at most."""
    batch = list[bytes]()
    while len(batch) < BATCH:
        lowest = sender.lowest(now=now)
        number = sender.packet_to_send(now=now)
        if number is None:
            break
        batch.append(wire.data_header(session, number, lowest) + padding)
    return batch


class _Flow:
    def __init__(
        self,
        socket: UdpSocket,
        opening: Opening,
        controller: Controller,
        request: Request,
        remote: Address,
    ) -> None:
        assert opening.answer is not None
        self._socket, self._request = socket, request
        self._session, self._key = opening.hello.session, opening.key
        self._size = opening.answer.max_datagram
        self._padding = bytes(self._size - wire.DATA_BYTES)
        self._wire_bytes = self._size + header_bytes(remote) + _TUN_HEADER
        self._controller, self._rtts = controller, TimeRecord()
        self._first_rtt = opening.rtt
        self._begin = self._heard = 0
        self._over = False
        self.sent = Sent(ignored=opening.ignored)

    def run(
        self,
        step_ns: Callable[[float], int],
        on_step: Callable[[Step], None],
        stopping: Callable[[], bool],
    ) -> None:
        """Send until the end; what ends it early is in ``sent.failure``."""
        self._begin = self._heard = now = monotonic_ns()
        options = SenderOptions(packet_bytes=self._wire_bytes)
        sender = Sender(
            self._controller, options, now=now, first_rtt=self._first_rtt, on_rtt=self._rtts.add
        )
        self._sender = sender
        ticker = Ticker(now=now, step=step_ns(0.0))
        end = now + _ns(self._request.seconds)
        while True:
            # Take what has come and what is due.
            now = monotonic_ns()
            for datagram, _ in self._socket.receive():
                self._on_datagram(datagram, now)
            if sender.timer_time() <= now:
                self.sent.lost += len(sender.on_timer(now=now))
            if now >= ticker.due:
                on_step(self._end_step(ticker, step_ns, now))
                self._over = self._over or stopping()
            # Send what may leave, and see whether it goes on.
            if sender.inflight == 0:
                self._heard = now  # no ACK is awaited
            self._socket.send(next_batch(sender, self._session, self._padding, now=now))
            self._look_for_life(now)
            if self._over or now >= end:
                break
            self._socket.wait(min(ticker.due, sender.timer_time(), sender.send_time()))
        self._count(ticker, monotonic_ns())

    def _acknowledgement(self, datagram: bytes) -> Acknowledgement | None:
        """Decode a datagram as an ACK of this session; count any other and return None."""
        with suppress(WireError):
            ack = wire.decode(datagram)
            if (
                isinstance(ack, Acknowledgement)
                and ack.session == self._session
                and authentic(datagram, self._key)
            ):
                return ack
        self.sent.ignored += 1
        return None

    def _on_datagram(self, datagram: bytes, now: int) -> None:
        ack = self._acknowledgement(datagram)
        if ack is None:
            return
        self._heard = now
        acked, lost, spurious = self._sender.on_ack(ack.ranges, now=now)
        self.sent.acked += len(acked)
        self.sent.lost += len(lost) - len(spurious)
        self.sent.spurious += len(spurious)

    def _end_step(self, ticker: Ticker, step_ns: Callable[[float], int], now: int) -> Step:
        sender = self._sender
        stats = sender.take_interval(now=now)
        guarded = float(getattr(self._controller, "guarded", False))  # a policy's
        self._controller.on_interval(stats, now=now)
        sender.on_action(now=now)
        ticker.tick(now=now, step=step_ns(float(stats.min_rtt[0])))
        self.sent.timeouts += int(stats.timeouts[0])
        acked = float(stats.acked[0])
        return Step(
            time=(now - self._begin) / NANOSECONDS,
            duration=float(stats.duration[0]),
            acked=acked,
            lost=float(stats.net_lost[0]),
            rtt=float(stats.rtt_sum[0]) / acked if acked else 0.0,
            cwnd=float(stats.cwnd[0]),
            inflight=float(stats.inflight[0]),
            smoothed_rtt=sender.rtt.smoothed / NANOSECONDS,
            guarded=guarded,
        )

    def _look_for_life(self, now: int) -> None:
        if self._socket.too_large and not self.sent.acked:
            self.sent.failure = (
                f"a datagram of {self._size} bytes does not fit onto the path; give a smaller "
                "--datagram"
            )
            self._over = True
            return
        silent = (now - self._heard) / NANOSECONDS
        waiting = self._sender.inflight > 0 or self._sender.rtt.backoff > 0
        refused = self._socket.refused and silent > 1.0
        if refused or (waiting and silent > self._request.timeout_s):
            why = "nothing listens there any more" if refused else "it does not answer"
            self.sent.failure = f"the other end is gone: {why}, for {silent:.0f} s"
            if not (refused or self.sent.acked):
                self.sent.failure = self._swallowed()
            self._over = True

    def _swallowed(self) -> str:
        """Say that no DATA was acknowledged, though the handshake was answered."""
        self.sent.lost = self._sender.next_number
        less = _SAFE_DATAGRAM if self._size > _SAFE_DATAGRAM else wire.MIN_DATAGRAM
        hint = f"; try --datagram {less}" if less < self._size else ""
        return (
            f"none of {self._sender.next_number} packets was acknowledged, though the receiver "
            f"answered the handshake: the path swallows datagrams of {self._size} bytes (as some "
            f"VPNs, PPPoE and tunnels do), or it fell silent{hint}"
        )

    def _count(self, ticker: Ticker, now: int) -> None:
        sent, sender = self.sent, self._sender
        sent.seconds = (now - self._begin) / NANOSECONDS
        sent.packets, sent.bytes = sender.next_number, sent.acked * self._wire_bytes
        if sent.acked:
            sent.min_rtt_ms = sender.rtt.minimum * 1e-6
            sent.mean_rtt_ms, sent.p95_rtt_ms = self._rtts.mean_ms(), self._rtts.percentile_ms(95.0)
        sent.steps, sent.late_share = ticker.count, ticker.late_share()
        sent.lateness_p50_ms = ticker.percentile_ms(50.0)
        sent.lateness_p99_ms = ticker.percentile_ms(99.0)
        sent.unsent = self._socket.unsent

    def _fin(self, number: int) -> bytes:
        lowest = self._sender.lowest(now=monotonic_ns()) if number else 0
        header = wire.data_header(self._session, number, lowest, fin=True)
        return header.ljust(wire.MIN_DATAGRAM, b"\0")

    def abort(self) -> None:
        """Say that it is over, without waiting for an answer."""
        self._socket.send([self._fin(0)] * _ABORTS)

    def finish(self, stopping: Callable[[], bool]) -> None:
        """Say that it is over until the receiver acknowledges it."""
        sent = self.sent
        if sent.failure:
            self.abort()
            return
        number, stopped = self._sender.next_number, stopping()
        patience = self._request.timeout_s
        limit = min(patience, limits().kill) if stopped else patience
        repeat, arrived = Repeat(_ns(limit), now=monotonic_ns()), sent.acked > 0
        while not repeat.expired(now=monotonic_ns()) and stopping() == stopped:
            if repeat.take(now=monotonic_ns()):
                self._socket.send([self._fin(number)])
            self._socket.wait(min(repeat.next_time(), monotonic_ns() + _ns(limits().tick)))
            for datagram, _ in self._socket.receive():
                ack = self._acknowledgement(datagram)
                arrived = arrived or (ack is not None and ack.ranges[-1][0] < number)
                if ack is not None and ack.ranges[0][1] > number:
                    # A path may let the FIN through, which is small, and nothing else.
                    if sent.packets and not arrived:
                        sent.failure = self._swallowed()
                    return
                self._heard = self._heard if ack is None else monotonic_ns()
        # Who acknowledges packets still is there: behind a long queue the FIN comes later.
        if not stopping() and monotonic_ns() - self._heard > _ns(limit / 2):
            sent.failure = "the other end did not confirm the end"
