"""Flows of the kernel's TCP under a named congestion control, and the sink that they fill.

    python -m distrlcc.net.kernel.tcp_flow sink ADDRESS PORT SECONDS [FLOWS]
    python -m distrlcc.net.kernel.tcp_flow send ADDRESS PORT CONTROL SECONDS [FLOWS [FILE]]

The control is set and read back, as the system's default may be another one. ``send`` prints a JSON
array, or writes it to FILE. Each flow has its control, seconds, acknowledged bytes, and
``samples_columns``: a `TcpSample` each 10 ms. With a FILE it waits first as in
`distrlcc.net.emulator.command_group`. ``sink`` waits for so many s for a sender and its bytes.
"""

import json
import selectors
import socket
import struct
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from distrlcc.errors import LinkError
from distrlcc.limits import limits
from distrlcc.net.emulator.command_group import wait_for_start
from distrlcc.net.udp_socket import give_room
from distrlcc.processes import run_soon

_CHUNK = bytes(1 << 16)
_SAMPLE_SECONDS = 0.01
_INFO_BYTES = 192
_BUFFER_BYTES, _UNSENT_BYTES = 32 << 20, 1 << 20
"""A socket's buffer, more than paths hold, so that congestion control alone limits the flows; and
the greatest backlog of unsent data, bytes."""
# Offsets in struct tcp_info (include/uapi/linux/tcp.h), which only ever grows at its end.
_RTT, _CWND, _RETRANSMITTED, _ACKED, _SENT = 68, 80, 100, 120, 156


class TcpSample(NamedTuple):
    """A flow at one time; counts are since its beginning, packets are the kernel's segments."""

    time_s: float  # since the flow began
    smoothed_rtt_ms: float  # the kernel's (RFC 6298), which takes in each acknowledgement
    cwnd_packets: int
    sent_packets: int  # with data, those that were sent again among them
    retransmitted_packets: int
    acked_bytes: int


def kernel_controls() -> list[str]:
    """Return the congestion controls that the kernel's TCP has."""
    return Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split()


def sink(host: str, port: int, patience_s: float, flows: int = 1) -> None:
    """Receive connections' bytes until their end, or none for ``patience_s``; raises LinkError."""
    try:
        server = socket.create_server((host, port), backlog=flows)
    except OSError as error:
        raise LinkError(f"cannot listen on {host}:{port} ({error.strerror})") from None
    give_room(server, _BUFFER_BYTES)  # whose connections have as much
    with ExitStack() as opened:
        selector = opened.enter_context(selectors.DefaultSelector())
        opened.enter_context(server).settimeout(patience_s)
        for _ in range(flows):
            try:
                connection = opened.enter_context(server.accept()[0])
            except TimeoutError:
                raise LinkError(f"no sender came to {host}:{port} in {patience_s:.0f} s") from None
            connection.setblocking(False)
            selector.register(connection, selectors.EVENT_READ)
        while selector.get_map() and (ready := selector.select(patience_s)):
            for key, _ in ready:
                received = b""
                with suppress(ConnectionResetError):  # how the sender ends, see there
                    received = key.fileobj.recv(1 << 20)  # type: ignore[union-attr]
                if not received:
                    selector.unregister(key.fileobj)


def send(
    host: str,
    port: int,
    control: str,
    seconds: float,
    flows: int = 1,
    on_open: Callable[[], None] = lambda: None,
    on_sample: Callable[[socket.socket], None] = lambda _: None,
) -> list[dict[str, Any]]:
    """Send to a sink as fast as a congestion control lets us; return the module's JSON array.

    There is a sample each 10 ms from the beginning on, or later where the machine was busy, and the
    end's. ``on_open`` is called when all are connected; the flows begin when it returns.
    ``on_sample`` is called with the first one's socket after each sample. Raises LinkError.
    """
    with ExitStack() as opened:
        selector = opened.enter_context(selectors.DefaultSelector())
        sockets = [opened.enter_context(_connect(host, port, control)) for _ in range(flows)]
        for flow in sockets:
            selector.register(flow, selectors.EVENT_WRITE)
        # Send until the time is over.
        on_open()
        samples: list[list[TcpSample]] = []
        begin = now = time.monotonic()
        due = begin
        while now < begin + seconds:
            if now >= due:
                samples.append([_read_sample(flow, time_s=now - begin) for flow in sockets])
                on_sample(sockets[0])
                due += _SAMPLE_SECONDS
            for key, _ in selector.select(max(min(due, begin + seconds) - now, 0.0)):
                with suppress(BlockingIOError):
                    key.fileobj.send(_CHUNK)  # type: ignore[union-attr]
            now = time.monotonic()
        samples.append([_read_sample(flow, time_s=now - begin) for flow in sockets])
        # What is queued here would still have to cross the link: it is thrown away.
        for flow in sockets:
            flow.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    found: list[dict[str, Any]] = []
    for own in zip(*samples, strict=True):
        columns = dict(zip(TcpSample._fields, map(list, zip(*own, strict=True)), strict=True))
        told = {"control": control, "seconds": now - begin, "acked_bytes": own[-1].acked_bytes}
        found.append({**told, "samples_columns": columns})
    return found


def _read_sample(flow: socket.socket, *, time_s: float) -> TcpSample:
    info = flow.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    places = (_RTT, _CWND, _SENT, _RETRANSMITTED)
    rtt, cwnd, sent, again = (struct.unpack_from("I", info, place)[0] for place in places)
    (acked,) = struct.unpack_from("Q", info, _ACKED)
    return TcpSample(time_s, rtt / 1e3, cwnd, sent, again, acked)


def _connect(host: str, port: int, control: str) -> socket.socket:
    """Return a connection that does not block, under a control that was set and read back."""
    deadline = time.monotonic() + limits().join
    while True:
        try:
            flow = socket.create_connection((host, port), timeout=limits().join)
            break
        except OSError as error:
            if time.monotonic() > deadline:
                raise LinkError(f"no TCP sink at {host}:{port} ({error})") from None
            time.sleep(limits().tick)
    try:
        flow.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, control.encode())
    except OSError as error:
        flow.close()
        raise LinkError(
            f"the kernel's TCP cannot use {control} ({error.strerror}); it has "
            f"{', '.join(kernel_controls())}"
        ) from None
    used = flow.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode()
    if used != control:
        flow.close()
        raise LinkError(f"asked for {control}, the kernel took {used}")
    give_room(flow, _BUFFER_BYTES)
    flow.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
    flow.setblocking(False)
    return flow


if __name__ == "__main__":
    what, host, port, *rest = sys.argv[1:]
    run_soon()
    try:
        if what == "sink":
            sink(host, int(port), float(rest[0]), *map(int, rest[1:]))
        else:
            flows, file = int(rest[2]) if rest[2:] else 1, rest[3:]
            wait = partial(wait_for_start, sys.stdout) if file else lambda: None
            text = json.dumps(send(host, int(port), rest[0], float(rest[1]), flows, wait))
            if file:
                Path(file[0]).write_text(f"{text}\n", encoding="utf-8")
            else:
                sys.stdout.write(f"{text}\n")
    except LinkError as error:
        sys.stderr.write(f"distrlcc: error: {error}\n")
        sys.exit(error.exit_code)
