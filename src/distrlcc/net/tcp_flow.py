"""A flow of the kernel's TCP under a named congestion control, and the sink that it fills.

python -m distrlcc.net.tcp_flow sink 100.64.0.1 4731 60
python -m distrlcc.net.tcp_flow send 100.64.0.1 4731 cubic 10 [hold [FILE]]

The control is set and read back, as the system's default may be another one. ``send`` prints a JSON
object, or writes it to FILE: the control, the seconds, the bytes that were acknowledged, and
``samples_columns``, what `TcpSample` has, each 10 ms. ``sink`` waits for so many s for a sender and
its bytes; ``hold`` waits as in `distrlcc.net.command_group`.
"""

from __future__ import annotations

import json
import select
import socket
import struct
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from distrlcc.errors import LinkError
from distrlcc.limits import limits
from distrlcc.net.command_group import wait_for_start

_CHUNK = bytes(1 << 16)
_SAMPLE_SECONDS = 0.01
_INFO_BYTES = 192
# Offsets in struct tcp_info (include/uapi/linux/tcp.h), which only ever grows at its end.
_RTT, _CWND, _RETRANSMITTED, _ACKED, _SENT = 68, 80, 100, 120, 156


class TcpSample(NamedTuple):
    """A flow at one time; counts are since its beginning, packets are the kernel's segments."""

    time_s: float
    """Since the flow began."""
    smoothed_rtt_ms: float
    """The kernel's (RFC 6298), which takes in each acknowledgement."""
    cwnd_packets: int
    sent_packets: int
    """With data, those that were sent again among them."""
    retransmitted_packets: int
    acked_bytes: int


def kernel_controls() -> list[str]:
    """Return the congestion controls that the kernel's TCP has."""
    return Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split()


def sink(host: str, port: int, patience_s: float) -> None:
    """Receive one connection's bytes until its end, or until none come for ``patience_s``.

    Raises:
        LinkError: It cannot listen there, or no sender comes.
    """
    try:
        server = socket.create_server((host, port))
    except OSError as error:
        raise LinkError(f"cannot listen on {host}:{port} ({error.strerror})") from None
    with server:
        server.settimeout(patience_s)
        try:
            connection, _ = server.accept()
        except TimeoutError:
            raise LinkError(f"no sender came to {host}:{port} in {patience_s:.0f} s") from None
        with connection:
            connection.settimeout(patience_s)
            with suppress(ConnectionResetError):  # how the sender ends, see there
                while connection.recv(1 << 20):
                    pass


def send(
    host: str,
    port: int,
    control: str,
    seconds: float,
    on_open: Callable[[], None] = lambda: None,
    on_sample: Callable[[socket.socket], None] = lambda _: None,
) -> dict[str, Any]:
    """Send to a sink as fast as a congestion control lets us; return what the module describes.

    There is a sample each 10 ms from the beginning on, or later where the machine was busy, and the
    end's. ``on_open`` is called when it is connected; the flow begins when it returns.
    ``on_sample`` is called with its socket after each sample.

    Raises:
        LinkError: The kernel does not have the control, or the sink is not there.
    """
    flow = _connect(host, port)
    with flow:
        # Set the control, and read it back.
        try:
            flow.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, control.encode())
        except OSError as error:
            raise LinkError(
                f"the kernel's TCP cannot use {control} ({error.strerror}); it has "
                f"{', '.join(kernel_controls())}"
            ) from None
        answer = flow.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
        used = answer.rstrip(b"\0").decode()
        if used != control:
            raise LinkError(f"asked for {control}, the kernel took {used}")
        # Send until the time is over.
        flow.setblocking(False)
        on_open()
        samples: list[TcpSample] = []
        begin = now = time.monotonic()
        due = begin
        while now < begin + seconds:
            if now >= due:
                samples.append(_read_sample(flow, time_s=now - begin))
                on_sample(flow)
                due += _SAMPLE_SECONDS
            writable = select.select([], [flow], [], max(min(due, begin + seconds) - now, 0.0))[1]
            if writable:
                with suppress(BlockingIOError):
                    flow.send(_CHUNK)
            now = time.monotonic()
        samples.append(_read_sample(flow, time_s=now - begin))
        # What is queued here would still have to cross the link: it is thrown away.
        flow.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    columns = zip(TcpSample._fields, zip(*samples, strict=True), strict=True)
    return {
        "control": used,
        "seconds": now - begin,
        "acked_bytes": samples[-1].acked_bytes,
        "samples_columns": {name: list(column) for name, column in columns},
    }


def _read_sample(flow: socket.socket, *, time_s: float) -> TcpSample:
    info = flow.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    places = (_RTT, _CWND, _SENT, _RETRANSMITTED)
    rtt, cwnd, sent, again = (struct.unpack_from("I", info, place)[0] for place in places)
    (acked,) = struct.unpack_from("Q", info, _ACKED)
    return TcpSample(time_s, rtt / 1e3, cwnd, sent, again, acked)


def _connect(host: str, port: int) -> socket.socket:
    deadline = time.monotonic() + limits().join
    while True:
        try:
            return socket.create_connection((host, port), timeout=limits().join)
        except OSError as error:
            if time.monotonic() > deadline:
                raise LinkError(f"no TCP sink at {host}:{port} ({error})") from None
            time.sleep(limits().tick)


if __name__ == "__main__":
    try:
        if sys.argv[1] == "sink":
            sink(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
        else:
            host, port, control, seconds, *hold = sys.argv[2:]
            wait = partial(wait_for_start, sys.stdout) if hold else lambda: None
            sent = send(host, int(port), control, float(seconds), wait)
            text = json.dumps(sent) + "\n"
            if hold[1:]:
                Path(hold[1]).write_text(text, encoding="utf-8")
            else:
                sys.stdout.write(text)
    except LinkError as error:
        sys.stderr.write(f"distrlcc: error: {error}\n")
        sys.exit(error.exit_code)
