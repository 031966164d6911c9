"""A bulk transfer of the kernel's own TCP through a link in user space, both ends in one process.

A `TcpFlow` runs under the program of `distrlcc.net.kernel.tcp`, which takes its window from a
`PLACE` in shared memory and leaves its statistics there. A `Wire` is a network of this thread's
own, with one address for both ends. Senders' packets leave the kernel by a TUN device, as their
marks (SO_MARK) say, pass a link here, and are written back. ACKs never leave the kernel.
Connections begin without a handshake (TCP_REPAIR), so no round trip is known before the first.
"""

import ipaddress
import itertools
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from time import monotonic_ns

import numpy as np
from numpy.typing import NDArray

from distrlcc.control.base import Held
from distrlcc.net.emulator.device import Block, open_inner, send_marked_out
from distrlcc.net.emulator.namespace import new_network
from distrlcc.net.udp_socket import give_room, not_opened
from distrlcc.policy.kernel_layout import INTERVAL, ONE, RATE_ONE
from distrlcc.sim.link import NEVER
from distrlcc.sim.scenario import Flow
from distrlcc.types import PACKET_BYTES

_BLOCK = Block(ipaddress.IPv4Network("100.64.0.0/18"))
_PORTS = range(10_000, 60_000, 2)
_HEADER_BYTES = 4  # the TUN device's, which count on mahimahi's links
_READS = 64  # packets that are read in a row, while what is due waits
_BUFFER_BYTES, _UNSENT_BYTES, _UNREAD_BYTES = 32 << 20, 256 << 10, 64 << 10
_CHUNK, _SINK = bytes(_UNSENT_BYTES), bytearray(4 * _UNREAD_BYTES)
_COUNTED = dict.fromkeys(("sent", "acked", "lost"), 0)
_MEGABITS = PACKET_BYTES * 8e-6 / RATE_ONE  # Mbit/s of the program's unit of rates
# include/uapi/linux/tcp.h
_REPAIR, _REPAIR_QUEUE, _QUEUE_SEQ, _REPAIR_OPTIONS, _REPAIR_WINDOW = 19, 20, 21, 22, 29
_RECEIVE_QUEUE, _SEND_QUEUE, _REPAIR_OFF_NO_PROBE = 1, 2, -1
_MSS, _WINDOW_SCALE, _SACK_PERMITTED, _TIMESTAMPS = 2, 3, 4, 8
_AT_ONCE = struct.pack("ii", 1, 0)
"""SO_LINGER: what was not sent is thrown away; else it would keep the network when all is gone."""
_FULL_MSS, _SCALE = 1460, 10


def _connect(port: int, remote: int, mark: int) -> socket.socket:
    """Return one end of a connection, as a handshake would have left it; see TCP_REPAIR."""
    end, tcp = socket.socket(), socket.IPPROTO_TCP
    end.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, mark)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
    give_room(end, _BUFFER_BYTES)
    end.setsockopt(tcp, socket.TCP_MAXSEG, _FULL_MSS)
    end.setsockopt(tcp, _REPAIR, 1)
    for queue in (_SEND_QUEUE, _RECEIVE_QUEUE):
        end.setsockopt(tcp, _REPAIR_QUEUE, queue)
        end.setsockopt(tcp, _QUEUE_SEQ, 1)
    end.bind((_BLOCK.inner, port))
    end.connect((_BLOCK.inner, remote))
    scales, window = _SCALE | _SCALE << 16, 65535 << _SCALE
    options = (_MSS, _FULL_MSS, _WINDOW_SCALE, scales, _SACK_PERMITTED, 0, _TIMESTAMPS, 0)
    end.setsockopt(tcp, _REPAIR_OPTIONS, struct.pack("8I", *options))
    windows = struct.pack("5I", 1, window, window, _BUFFER_BYTES, 1)
    end.setsockopt(tcp, _REPAIR_WINDOW, windows)
    end.setsockopt(tcp, _REPAIR, _REPAIR_OFF_NO_PROBE)
    end.setblocking(False)
    return end


class Wire:
    """A TUN device in a network of this thread's own, which has both ends of its connections."""

    def __init__(self, stack: ExitStack) -> None:
        """Enter the network and make the device, until the stack closes; raises LinkError."""
        stack.enter_context(new_network())
        self._device = open_inner(_BLOCK)
        stack.callback(self._device.close)
        send_marked_out()
        self.fileno, self.write = self._device.fileno, self._device.write
        # A connection does not begin with what another one learned.
        Path("/proc/sys/net/ipv4/tcp_no_metrics_save").write_text("1")
        self._ports = itertools.cycle(_PORTS)
        self._flows: dict[bytes, TcpFlow] = {}  # by the sender's port

    def connect(
        self, flow: "TcpFlow", mark: int, stack: ExitStack
    ) -> tuple[socket.socket, socket.socket]:
        """Return a flow's sender and receiver, which end when the stack closes."""
        port = next(self._ports)
        try:
            ends = _connect(port, port + 1, mark), _connect(port + 1, port, 0)
        except OSError as error:
            raise not_opened("a TCP connection", error) from None
        self._flows[port.to_bytes(2)] = flow
        stack.callback(self._flows.pop, port.to_bytes(2))
        for end in ends:
            stack.callback(end.close)
        return ends

    def carry(self, _now: int) -> None:
        """Give flows the packets that have left the kernel."""
        read, flows, found = self._device.read, self._flows, dict[TcpFlow, list[bytes]]()
        with suppress(BlockingIOError):
            for _ in range(_READS):
                packet = read()
                flow = flows.get(packet[20:22])
                if flow is not None:  # else of a connection that was closed
                    found.setdefault(flow, []).append(packet)
        now = monotonic_ns()
        for flow, packets in found.items():
            flow.forward(packets, now)


class TcpFlow:
    """A bulk transfer, both of its ends: a `SendingFlow` and a `RelayFlow` in one."""

    number = 0

    def __init__(
        self, flow: Flow, place: NDArray[np.void], mark: int, control: str, wire: Wire
    ) -> None:
        """Open it, to send from the first `hold` on; the program finds its place by ``mark``."""
        self._flow, self._wire, self._control = flow, wire, control.encode()
        # The connection.
        self._stack = ExitStack()
        self.socket, self._far = wire.connect(self, mark, self._stack)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
        self._start = self._stop = NEVER
        self.silent = False
        self.follows = False  # whether it has the congestion control; `hold` chooses it
        # Packets on the link, by number, and what was not read of those that arrived.
        self.on_packets: Callable[[int, Iterable[tuple[int, int]], int], None] | None = None
        """Puts packets of a flow on the link, each a number and its bytes, at a time, ns."""
        self.flying = deque[tuple[int, int, int]]()
        self._packets = deque[bytes]()
        self._first = self._unread = 0
        # Orders, and what comes of them.
        self._place, self._step, self._held = place, 1, Held(*flow.first_held)
        place[:] = 0
        place["step"] = self._step
        self._seen = dict.fromkeys(INTERVAL.names or (), 0)

    def begin(self, *, now: int) -> None:
        """Begin the scenario's time: the flow starts at its start time."""
        self._start, self._stop = (now + time for time in self._flow.span_ns)
        self.hold(self._held.cwnd, self._held.pacing_rate, now=now)

    def close(self) -> None:
        """Close both ends."""
        self._stack.close()

    def hold(self, cwnd: float, pacing_rate: float, *, now: int) -> None:
        """Order a window, packets, and a pacing rate, packets/s; 0: what the window gives."""
        self._held.cwnd, self._held.pacing_rate = cwnd, pacing_rate
        self._place["cwnd"], self._place["rate"] = int(cwnd * ONE), int(pacing_rate * RATE_ONE)
        if now >= self._start and not self.follows:
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, self._control)
            self.follows = True
            self.receive(now)

    def wake(self, *, now: int) -> None:
        """Send again after a silence."""
        if self.silent:
            self.silent = False
            self.receive(now)

    def receive(self, now: int) -> None:
        """Give the kernel something to send, as it has room."""
        with suppress(BlockingIOError):
            while self.follows and not self.silent and now < self._stop:
                self.socket.send(_CHUNK)

    def forward(self, packets: list[bytes], now: int) -> None:
        """Put packets on the link; those that the kernel still had at the stop are dropped."""
        if now >= self._stop:
            return
        assert self.on_packets is not None
        number = self._first + len(self._packets)
        self._packets += packets
        sizes = (len(packet) + _HEADER_BYTES for packet in packets)
        self.on_packets(self.number, enumerate(sizes, number), now)

    def deliver(self, now: int) -> None:
        """Give the receiver what has arrived, and take the bytes from it."""
        flying, packets = self.flying, self._packets
        while flying and flying[0][0] <= now:
            number = flying.popleft()[1]
            while self._first < number:  # lost on the link
                packets.popleft()
                self._first += 1
            self._first += 1
            self._wire.write(packets[0])
            self._unread += len(packets.popleft())
        if self._unread > _UNREAD_BYTES:
            with suppress(BlockingIOError):
                while self._far.recv_into(_SINK, 0, socket.MSG_TRUNC) == len(_SINK):
                    pass  # more is there; nothing is copied
            self._unread = 0

    def take_interval(self, *, now: int) -> list[float]:
        """Return what was seen since the last call, as `IntervalStats` without its duration."""
        before, seen = self._seen, self._seen | _COUNTED  # as without an acknowledgement
        if self._place["seen_step"][0] == self._step:
            seen = dict(zip(before, self._place["seen"][0].item(), strict=True))
        self._seen, self._step = seen, self._step + 1
        self._place["step"] = self._step
        return _stats(seen, seen["timeouts"] - before["timeouts"], self._held)


def _stats(seen: dict[str, int], timeouts: int, held: Held) -> list[float]:
    """Return what an `INTERVAL` says, as the kernel's program takes it, without the duration."""
    last = seen["rtt_last"]
    acked = seen["acked"] if last else 0
    # Acknowledgements without a round trip of their own are taken to have the others', or the last.
    sampled = seen["rtt_count"] > 0
    mean = seen["rtt_sum"] / seen["rtt_count"] if sampled else last
    least, most = (seen["rtt_min"], seen["rtt_max"]) if sampled else (last, last)
    heard = acked > 0
    return [
        *(0.0, seen["sent"], acked, seen["lost"], max(timeouts, 0)),
        *(acked * mean * 1e-6, heard * least * 1e-6, heard * most * 1e-6),
        *(last * 1e-6, seen["min_rtt"] * 1e-6),
        *(held.cwnd, held.pacing_rate, seen["inflight"]),
        heard * seen["delay"] / (1000 << 16),
        heard * seen["delivery_rate"] * _MEGABITS,
        heard * seen["send_rate"] * _MEGABITS,
        0.0,  # TCP does not tell of spurious losses
    ]
