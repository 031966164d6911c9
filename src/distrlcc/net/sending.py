"""One flow over a real socket: handshake, packets until the time or the file is over, and the end.

Read `send` top to bottom. Everything that congestion control decides is in the sans-IO
`distrlcc.transport.sender`; this keeps its times.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from distrlcc.control.base import Controller
from distrlcc.errors import LinkError, WireError
from distrlcc.net.file_source import FileSource
from distrlcc.net.rtt_log import RttLog
from distrlcc.net.sent import Sent, Step
from distrlcc.net.ticker import Ticker
from distrlcc.net.udp_socket import Address, UdpSocket, monotonic_ns, shown
from distrlcc.transport import wire
from distrlcc.transport.handshake import Closing, Opening, State
from distrlcc.transport.keys import authentic
from distrlcc.transport.messages import (
    NONCE_BYTES,
    Acknowledgement,
    Close,
    Closed,
    Ending,
    Hello,
    Verdict,
)
from distrlcc.transport.repeat import RepeatOptions
from distrlcc.transport.sender import Sender, SenderOptions
from distrlcc.transport.stream import StreamSender
from distrlcc.types import NANOSECONDS, IntervalStats

_MTU, _TUN_HEADER = 1500, 4
_BATCH = 32
_ABORTS = 3
"""Copies of the word that a file is given up, as nobody answers it."""
_STOPPED_SECONDS = 2.0
"""Time limit of the end where the user wants it."""
_STORING = 20e6
"""Bytes/s at which a receiver is expected to store a file at its end."""
_LOOK_NS = 100_000_000
_VERDICTS = {
    Verdict.DIFFERENT: "its checksum differs at the other end, which has thrown it away",
    Verdict.INCOMPLETE: "the other end says that parts are missing, and has thrown it away",
    Verdict.FAILED: "the other end could not store it; is its disk full?",
}


@dataclass(frozen=True)
class Request:
    """What to send."""

    seconds: float = 10.0
    """How long; for a file the most that it may take, 0: as long as it takes."""
    file: Path | None = None
    """None sends zeros, for a measurement."""
    datagram: int = 0
    """UDP payload of a packet, bytes; 0: what makes a packet of 1500 bytes."""
    handshake_s: float = 10.0
    """Time limit of the handshake and of the end, s."""
    wait_s: float = 0.0
    """How long to wait for a receiver that is not there yet, s."""
    silence_s: float = 10.0
    """The other end counts as gone when nothing was heard for this long, s."""
    keep_series: bool = True
    """Whether every step is kept."""


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
    """Send until the time or the file is over.

    Args:
        remote: A receiver's address.
        controller: Sets window and rate.
        request: What to send.
        step_ns: Asked for each step's length, ns, with the minimum RTT so far, s.
        on_step: Told of each step.
        stopping: Asked at each step; True ends it early.
        on_open: Called when the receiver has let us in; the flow begins when it returns.

    Raises:
        LinkError: The receiver does not answer or refuses, the file cannot be read, or it was
            stopped before it began.
    """
    with ExitStack() as stack:
        source = stack.enter_context(FileSource(request.file)) if request.file else None
        socket = stack.enter_context(UdpSocket(connect=remote))
        opening = _open(socket, remote, request, source, stopping)
        headers = header_bytes(remote) + _TUN_HEADER
        try:
            on_open()
        except BaseException:
            _abort(socket, opening)
            raise
        flow = _Flow(socket, opening, controller, request, source, headers, step_ns)
        try:
            flow.run(on_step, stopping)
        except BaseException:
            flow.abort()
            raise
        flow.finish(stopping)
        return flow.sent


def _open(
    socket: UdpSocket,
    remote: Address,
    request: Request,
    source: FileSource | None,
    stopping: Callable[[], bool],
) -> Opening:
    """Shake hands."""
    hello = Hello(
        secrets.randbits(64),
        secrets.token_bytes(NONCE_BYTES),
        request.datagram or _MTU - header_bytes(remote),
        None if source is None else source.size,
        "" if source is None else source.path.name,
    )
    place = shown(remote)
    try:
        limit = _limit(request.handshake_s + request.wait_s)
        opening = Opening(hello, limit, now=monotonic_ns())
    except WireError as error:
        raise LinkError(str(error)) from None
    patience = monotonic_ns() + round(request.wait_s * NANOSECONDS)
    while opening.state is State.WAITING:
        datagram = opening.datagram_to_send(now=monotonic_ns())
        if datagram is not None:
            socket.refused = False
            socket.send([datagram])
        socket.wait(min(opening.next_time(), monotonic_ns() + _LOOK_NS))
        if stopping():
            raise LinkError(f"stopped before {place} answered")
        for answer, _ in socket.receive():
            opening.on_datagram(answer, now=monotonic_ns())
        if socket.refused and monotonic_ns() >= patience:
            raise LinkError(
                f"nobody listens at {place} (UDP); start there: distrlcc receive --listen {place}"
            )
    if opening.state is State.SILENT:
        raise LinkError(
            f"{place}: {opening.failure}; is 'distrlcc receive' there, and UDP let through?"
        )
    if opening.state is not State.OPEN:
        raise LinkError(f"{place}: {opening.failure}")
    return opening


def _limit(seconds: float) -> RepeatOptions:
    return RepeatOptions(limit_ns=round(seconds * NANOSECONDS))


def _abort(socket: UdpSocket, opening: Opening) -> None:
    close = wire.encode_close(Close(opening.hello.session, Ending.ABORTED), opening.key)
    for _ in range(_ABORTS):
        socket.send([close])


class _Flow:
    """A session that is open."""

    def __init__(
        self,
        socket: UdpSocket,
        opening: Opening,
        controller: Controller,
        request: Request,
        source: FileSource | None,
        headers: int,
        step_ns: Callable[[float], int],
    ) -> None:
        assert opening.welcome is not None
        self._max_delay = opening.welcome.max_ack_delay_us
        self._socket, self._request, self._source = socket, request, source
        self._opening = opening
        self._session, self._key = opening.hello.session, opening.key
        self._size = opening.welcome.max_datagram
        chunk = self._size - wire.DATA_BYTES
        self._padding = bytes(chunk)
        self._stream = None if source is None else StreamSender(source.size, chunk)
        self._log = RttLog(controller)
        self._begin = self._heard = now = monotonic_ns()
        self._wire_bytes = self._size + headers
        options = SenderOptions(packet_bytes=self._wire_bytes)
        self._sender = Sender(self._log, options, now=now)
        self._step_ns = step_ns
        self._ticker = Ticker(now=now, step=step_ns(0.0))
        self._over = self._ended = False
        self.sent = Sent(ignored=opening.ignored)

    def run(self, on_step: Callable[[Step], None], stopping: Callable[[], bool]) -> None:
        """Send until the end; what ends it early is in ``sent.failure``."""
        request, sender, ticker = self._request, self._sender, self._ticker
        limit = request.seconds * NANOSECONDS or float("inf")
        while not self._over:
            now = monotonic_ns()
            for datagram, _ in self._socket.receive():
                self._on_datagram(datagram, now)
            if sender.timer_time() <= now:
                self._on_lost(sender.on_timer(now=now))
            if now >= ticker.due:
                on_step(self._end_step(now))
                self._over = stopping()
            self._send(now)
            if self._stream is not None and self._stream.complete:
                break
            if now - self._begin >= limit:
                if self._stream is not None:
                    self.sent.failure = f"not done within {request.seconds:g} s"
                break
            self._look_for_life(now)
            until = min(ticker.due, sender.timer_time())
            if self._has_data:
                until = min(until, sender.send_time())
            self._socket.wait(until)
        if self._over and self._stream is not None and not self.sent.failure:
            self.sent.failure = "stopped"
        self._count(monotonic_ns())

    @property
    def _has_data(self) -> bool:
        stream = self._stream
        return stream is None or stream.has_data or self._sender.probe_due

    def _send(self, now: int) -> None:
        """Send what may be sent now, in one go."""
        sender, stream, session, batch = self._sender, self._stream, self._session, []
        if sender.inflight == 0:
            self._heard = now  # there is nothing to be heard of
        for _ in range(_BATCH):
            if not self._has_data:
                break
            lowest = sender.lowest
            number = sender.packet_to_send(now=now)
            if number is None:
                break
            if stream is None:
                batch.append(wire.data_header(session, number, lowest) + self._padding)
            else:
                assert self._source is not None
                chunk = stream.take(number)
                data = self._source.read(chunk.offset, chunk.length)
                header = wire.data_header(
                    session, number, lowest, chunk.offset, chunk.length, chunk.fin
                )
                batch.append(header + data)
        if batch:
            self._socket.send(batch)

    def _on_datagram(self, datagram: bytes, now: int) -> None:
        try:
            message = wire.decode(datagram)
        except WireError:
            self.sent.ignored += 1
            return
        if (
            not isinstance(message, Acknowledgement | Closed)
            or message.session != self._session
            or not authentic(datagram, self._key)
        ):
            self.sent.ignored += 1
            return
        self._heard = now
        if isinstance(message, Closed):  # it cannot go on
            self.sent.failure, self._over, self._ended = _failure(message), True, True
            return
        # RFC 9002, section 5.3: no more than the receiver means to hold one back.
        delay = 1000 * min(message.delay_us, self._max_delay)
        acked, lost = self._sender.on_ack(message.ranges, delay, now=now)
        self.sent.acked += len(acked)
        if self._stream is not None:
            self._stream.on_acked(acked)
        self._on_lost(lost)

    def _on_lost(self, numbers: list[int]) -> None:
        self.sent.lost += len(numbers)
        if self._stream is not None:
            self._stream.on_lost(numbers)

    def _end_step(self, now: int) -> Step:
        sender = self._sender
        stats: IntervalStats = sender.take_interval(now=now)
        self._log.on_interval(stats, now=now)
        sender.on_action(now=now)
        self._ticker.tick(now=now, step=self._step_ns(float(stats.min_rtt[0])))
        self.sent.timeouts += int(stats.timeouts[0])
        acked = float(stats.acked[0])
        step = Step(
            (now - self._begin) / NANOSECONDS,
            float(stats.duration[0]),
            acked,
            float(stats.lost[0]),
            float(stats.rtt_sum[0]) / acked if acked else 0.0,
            float(stats.cwnd[0]),
            float(stats.inflight[0]),
            sender.rtt.smoothed / NANOSECONDS,
        )
        if self._request.keep_series:
            self.sent.series.append(step)
        return step

    def _look_for_life(self, now: int) -> None:
        """Find out that the other end is gone."""
        if self._socket.too_large and not self.sent.acked:
            self.sent.failure = (
                f"a datagram of {self._size} bytes does not fit onto the path; give a smaller "
                "--datagram"
            )
            self._over = True
            return
        silent = (now - self._heard) / NANOSECONDS
        waiting = self._sender.inflight > 0 or self._sender.timeouts_in_row > 0
        refused = self._socket.refused and silent > 1.0
        if refused or (waiting and silent > self._request.silence_s):
            why = "nobody listens there any more" if refused else "it does not answer"
            self.sent.failure = f"the other end is gone: {why}, for {silent:.0f} s"
            self._over = True

    def _count(self, now: int) -> None:
        sent, sender, ticker, log = self.sent, self._sender, self._ticker, self._log
        sent.seconds = (now - self._begin) / NANOSECONDS
        sent.packets, sent.bytes = sender.next_number, sent.acked * self._wire_bytes
        sent.file_bytes = 0 if self._stream is None else self._stream.acked_bytes
        if sent.acked:
            sent.min_rtt_ms = sender.rtt.minimum * 1e-6
            sent.mean_rtt_ms, sent.p95_rtt_ms = log.mean_ms(), log.percentile_ms(95.0)
        sent.steps, sent.late_share = ticker.count, ticker.late_share()
        sent.lateness_p50_ms = ticker.percentile_ms(50.0)
        sent.lateness_p99_ms = ticker.percentile_ms(99.0)
        sent.unsent = self._socket.unsent

    def abort(self) -> None:
        """Say that it is given up; nobody answers that."""
        _abort(self._socket, self._opening)

    def finish(self, stopping: Callable[[], bool]) -> None:
        """Say that it is over, and hear what the other end thinks of it."""
        sent, source, request = self.sent, self._source, self._request
        if sent.failure:
            if not self._ended:
                self.abort()
            return
        close, seconds = Close(self._session, Ending.COMPLETE), request.handshake_s
        stopped = stopping()
        if source is not None:
            close = close._replace(size=source.size, digest=source.digest())
            seconds += source.size / _STORING
        elif stopped:
            seconds = min(seconds, _STOPPED_SECONDS)
        closing = Closing(close, self._key, _limit(seconds), now=monotonic_ns())
        while closing.state is State.WAITING and stopping() == stopped:
            datagram = closing.datagram_to_send(now=monotonic_ns())
            if datagram is not None:
                self._socket.send([datagram])
            self._socket.wait(min(closing.next_time(), monotonic_ns() + _LOOK_NS))
            for answer, _ in self._socket.receive():
                closing.on_datagram(answer, now=monotonic_ns())
        if closing.closed is not None:
            sent.failure = _failure(closing.closed)
        elif not stopped or source is not None:
            sent.failure = "the other end did not confirm the end; whether it has all is not known"


def _failure(closed: Closed) -> str:
    """Return why a receiver's last word is none of success, or nothing."""
    if closed.verdict == Verdict.INTACT:
        return ""
    return _VERDICTS.get(Verdict(closed.verdict), f"verdict {closed.verdict}")
